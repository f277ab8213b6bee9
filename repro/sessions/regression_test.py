"""Turns a race of a run into a test of its own: the program is reduced, and each trial is judged as the test does.

Each trial runs in a folder that holds only the program, in a fork of a process with the program's imports preloaded.
The final program runs again without preloading, twice, and as the test itself will run it.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from streamrace.detectors.identity import lasting
from streamrace.detectors.order.races import Race, Side
from streamrace.detectors.places import between as lies_between
from streamrace.detectors.places import meant
from streamrace.device.extras import installed
from streamrace.device.opened_files import LARGEST_OF_ALL
from streamrace.device.packages import VARIABLE, folder_of_releases, names
from streamrace.device.packages.installing import place_of
from streamrace.device.scripts import WrongUse
from streamrace.device.timing import Timing
from streamrace.fuzz.live.runs import Runner
from streamrace.fuzz.live.standalone import SAME_ORDER, Alone, standing
from streamrace.fuzz.reduction import modules
from streamrace.fuzz.reduction.race_predicate import Look, Shows
from streamrace.fuzz.reduction.search import Files, Reduced, reduce
from streamrace.fuzz.reduction.text import Text
from streamrace.fuzz.testing.programs import judged
from streamrace.reports.data.opened_files import KeptOpenedFile, noted
from streamrace.reports.formats.regression_test import EmittedTest
from streamrace.repro.sessions.folders import ON_GPU, OPENED
from streamrace.repro.sessions.race_selection import BETWEEN, Chosen

_PATIENCE, LEAST_S = 5, 30.0  # multiple of the program's first duration, and a lower bound
FIRST_S = 600.0  # limit of the first run
_LARGEST_COPIED = 64 << 20  # bytes of a file that the test copies from its own folder
_IMPORTED = "torch._dynamo"  # torch's optimizers import it on first use, which takes seconds

_TELL = """
import json, sys
from streamrace.device.packages import VARIABLE, environment_of
environment = environment_of(sys.argv[1:])
print(json.dumps({name: environment.get(name, "") for name in ("PYTHONPATH", VARIABLE)}))
"""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class AskedTest:
    """The program of a run. ``script``: its file."""

    script: Path
    arguments: tuple[str, ...]
    ranks: int
    packages: tuple[str, ...]

    @classmethod
    def of(cls, folder: Path, *, own: bool, request: Mapping[str, Any]) -> AskedTest:
        """Derive the program from a run's request. Raises :class:`WrongUse` if the run cannot become a test."""
        if not own:
            raise WrongUse(f"{folder} is the run of a scenario: emit-test is of a program that 'streamrace check' ran")
        if request.get("dry_on_nodes"):
            raise WrongUse(f"{folder} is a dry run, and has no values: check the program on one machine's ranks")
        if request.get(ON_GPU):
            raise WrongUse(
                f"{folder} was recorded on a GPU, and a test runs on a simulated one: check the program without "
                "--on-gpu, and make the test of that run"
            )
        if request.get("scale_limits"):
            raise WrongUse(
                f"{folder} had --scale-limits, and a test has no such option: give the program's own "
                "configuration the limits that the verdict names, and check it again"
            )
        if request.get("gpus"):
            raise WrongUse(f"{folder} had --gpus {request['gpus']}, and a test has one GPU for each rank")
        if request.get("compile"):
            raise WrongUse(
                f"{folder} had --compile {request['compile']}, and a test has no such option: its compiled "
                "functions would run eagerly"
            )
        try:
            words = shlex.split(str(request.get("program", "")))
        except ValueError:
            words = []
        if not words:
            raise WrongUse(f"{folder} does not say which program ran")
        if words[0] == "-m":
            raise WrongUse(f"{folder} is of a module (-m): emit-test is of a script")
        script = Path(words[0])
        if not script.is_file():
            raise WrongUse(
                f"there is no {words[0]} here, which {folder} is of: run emit-test where 'streamrace check' ran"
            )
        ranks = request.get("ranks", 1)
        if type(ranks) is not int or not 1 <= ranks <= 64:
            raise WrongUse(f"{folder} does not say on how many ranks its program ran")
        packages = request.get("packages", {})
        releases = packages if isinstance(packages, dict) else {}
        return cls(script, tuple(words[1:]), ranks, tuple(name for name, word in releases.items() if word != "beside"))


def available_releases(packages: Sequence[str], requested: Sequence[str]) -> Sequence[str]:
    """Return the run's releases and the ``requested`` ones. As nothing is installed unasked, a run's release must be
    requested, cached or the environment's. Raises :class:`WrongUse`,
    :class:`streamrace.device.packages.names.PackageError`.
    """
    for pkg in names.several(packages):
        available = pkg.is_(names.installed(pkg.name)) or place_of(pkg, folder_of_releases()).is_dir()
        if str(pkg) not in requested and not available:
            raise WrongUse(f"the run was with {pkg.title}, which is not here: say --package {pkg} to have it installed")
    return [*packages, *(pkg for pkg in requested if pkg not in packages)]


class Prepared(NamedTuple):
    """A program that stands by itself. ``path``: prepended to the import path; ``beforehand``: imported before a run.

    ``elsewhere``: paths of files that it opens and does not bring; ``needed``: modules that it does not bring.
    """

    files: Files
    program: Alone
    path: Sequence[str]
    beforehand: Sequence[str]
    elsewhere: Sequence[str]
    needed: Sequence[str]


def prepared(folder: Path, test: AskedTest) -> Prepared:
    """Collect the program of the run in ``folder``, with its modules and the files that it opens."""
    try:
        imports = modules.imported(test.script)
        files: Files = {test.script.name: modules.read(test.script), **(imports.beside if imports.few else {})}
        data, elsewhere = _data(noted(folder / OPENED), [*files.values(), *test.arguments])
        program = Alone(files, test.arguments, test.ranks if test.ranks > 1 else None, data)
    except (modules.NoProgram, ValueError) as problem:
        raise WrongUse(str(problem)) from None
    needed = [*imports.packages, *([] if imports.few else [Path(name).stem for name in imports.beside])]
    path = [str(test.script.parent.absolute())] if needed else []
    return Prepared(files, program, path, [*_importable(imports.installed), _IMPORTED], elsewhere, needed)


def emit(
    chosen: Chosen, test: AskedTest, timing: Timing, named: str, trials: int, tell: Tell, *, fixed: Sequence[str] = ()
) -> EmittedTest:
    """Create the test. ``named``: the user's name of the race; ``trials``: most smaller programs that are tried;
    ``fixed``: releases with which the test has to pass.

    Raises :class:`WrongUse` if the program, alone in a folder, does not show the race.
    """
    places = _places(chosen.race, named)
    files, program, path, beforehand, elsewhere, needed = prepared(chosen.folder, test)
    mended = _variables(fixed) if fixed else {}
    with running(path, beforehand) as runner, _other(path, beforehand, mended, runner) as other:
        tell("the program by itself")
        shows = _shown(program, chosen, timing, runner)
        if fixed:
            shows.mended = other, places
            if why := shows.unmended(files):
                raise WrongUse(f"with {' '.join(fixed)} the program {why}")
        reduced = Reduced(files, 0, whole=True)
        if trials:
            before = count_lines(files)

            def progress(done: int, left: Files) -> None:
                tell(f"trial {done + 1} of at most {trials}: {count_lines(left)} lines are left of {before}")

            reduced = reduce(files, shows, budget=trials, tell=progress)
    with running(path, []) as runner, _other(path, [], mended, runner) as other:
        tell("the reduced program, once more")
        final = replace(shows, runner=runner)
        last = final.look(reduced.files, twice=True)
        if not _same(shows, last):  # the preloaded imports made a difference
            reduced = Reduced(files, reduced.trials, whole=False)
            last = final.look(files, twice=True)
        if last.race is None or not _same(shows, last):
            raise WrongUse(f"the program does not show the race by itself: {last.why or 'its effect is another one'}")
        witness = last.witness
        token, against = (witness.token, witness.against) if witness and witness.token else ("t1", "t1")
        alone = replace(shows.program, files=reduced.files)
        with standing(alone, runner, shows.patience_s) as runs:
            runs.keep(timing)
            still = {file.key for file in noted(runs.opened)}
        alone = replace(alone, data={path: inner for path, inner in alone.data.items() if path in still})
        beside = _others(last.races, places)
        with standing(alone, runner, shows.patience_s) as runs:
            verdict = judged(runs, places, Timing.parse(token), Timing.parse(against) if against else None, beside)
        if not verdict.races or not all(lies_between(race, places) for race in verdict.races):
            raise WrongUse(f"the test would not fail for this race: {verdict.problem or 'it finds none'}")
        if verdict.unseen:
            raise WrongUse(f"no test of it could pass: the program was not seen in full: {'; '.join(verdict.unseen)}")
        if fixed:
            with standing(alone, other, shows.patience_s) as runs:
                verdict = judged(runs, places, Timing.parse(token), Timing.parse(against) if against else None, beside)
            if verdict.problem:
                raise WrongUse(f"with {' '.join(fixed)} the test would fail: {verdict.problem}")
    name, *others = reduced.files
    return EmittedTest(
        race=last.race,
        program=reduced.files[name],
        name=name,
        between=places,
        beside=beside,
        timing=token,
        reference=against,
        harm=witness.verdict if witness else "not confirmed",
        says=witness.says if witness else "",
        ranks=shows.program.ranks,
        modules={file: reduced.files[file] for file in others},
        data={name: None if isinstance(inner, Path) else inner for name, inner in alone.data.items()},
        elsewhere=[path for path in elsewhere if path in still],
        arguments=test.arguments,
        about=Text(files[name]).docstring if trials else "",
        releases=_releases(test.packages, last.race),
        needed=needed,
        lines=(count_lines(files), count_lines(reduced.files)),
        whole=reduced.whole,
        trials=reduced.trials,
    )


def _shown(program: Alone, chosen: Chosen, timing: Timing, runner: Runner) -> Shows:
    """Return the criterion for smaller programs, from the whole program. A program on one rank may need a launcher."""
    look = Look()
    for ranks in [program.ranks] if program.ranks else [None, 1]:
        trial = replace(program, ranks=ranks)
        shows = Shows(trial, lasting(chosen.race), timing, runner, FIRST_S)
        began = time.monotonic()
        look = shows.look(program.files, twice=True)
        if look.race is not None:
            shows.patience_s = max(LEAST_S, _PATIENCE * (time.monotonic() - began))
            shows.known = look.keys
            verdict = look.witness.verdict if look.witness else "not confirmed"
            shows.harm = verdict if verdict != "not confirmed" else ""
            return shows
    raise WrongUse(
        f"{program.name}, alone in a folder{_with(program)}, does not show race {chosen.number} of {chosen.folder}: "
        f"{look.why}"
    )


def _data(opened: Sequence[KeptOpenedFile], texts: Sequence[str]) -> tuple[dict[str, bytes | Path], list[str]]:
    """Return the files that the test takes along, those too large for its text as paths, and all others' paths.

    ``texts``: of the program and its arguments. A file whose whole path stands there is opened at that path.
    """
    data: dict[str, bytes | Path] = {}
    elsewhere, room = [], LARGEST_OF_ALL
    for file in opened:
        path = Path(file.path)
        if not file.name or any(file.path in text for text in texts):
            elsewhere.append(file.path)
        elif file.data is not None and len(file.data) <= room:
            data[file.name] = file.data
            room -= len(file.data)
        elif path.is_file() and path.stat().st_size <= _LARGEST_COPIED:
            data[file.name] = path
        else:
            elsewhere.append(file.path)
    return data, elsewhere


def _with(program: Alone) -> str:
    others = [*program.files, *program.data][1:]
    return f" with {', '.join(others)}" if others else ""


def _same(shows: Shows, look: Look) -> bool:
    verdict = look.witness.verdict if look.witness else ""
    return look.race is not None and (not shows.harm or verdict == shows.harm)


def _places(race: Race, named: str) -> tuple[str, str]:
    """Return the functions of the two accesses: as named, else the innermost. Not lines, which move."""
    places = [place.strip().rpartition("/")[2] for place in named.split(BETWEEN)]
    if len(places) == 2 and not any(place.rpartition(":")[2].isdigit() for place in places):
        return places[0], places[1]
    return _place(race.first, "first"), _place(race.second, "second")


def _others(races: Sequence[Race], places: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the places of all other races."""
    others = [race for race in races if not lies_between(race, places)]
    return sorted({(_place(race.first, "first"), _place(race.second, "second")) for race in others})


def _place(side: Side, which: str) -> str:
    frame = meant(side.stack)
    if frame is None:
        raise WrongUse(f"the place of the {which} access of this race is unknown: no test can look for it")
    function = frame.function.partition(" ")[0]
    return f"{frame.file.rpartition('/')[2]}:{function.rpartition('.')[2] if '<locals>' in function else function}"


def _importable(installed: Sequence[str]) -> list[str]:
    """Return the modules to preload for all runs."""
    standard = sys.stdlib_module_names
    return [module for module in installed if module.partition(".")[0] not in standard]


@contextmanager
def running(
    path: Sequence[str], imported: Sequence[str], variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Runner]:
    """Start a runner. ``path``: prepended to the import path; ``variables``: added to its environment."""
    behind = variables.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    joined = os.pathsep.join(filter(None, [*path, behind]))
    with Runner(imported, {**variables, **SAME_ORDER, "PYTHONPATH": joined or None}, quiet=True) as runner:
        yield runner


def _other(
    path: Sequence[str], imported: Sequence[str], variables: Mapping[str, str], runner: Runner
) -> AbstractContextManager[Runner]:
    """Return a runner with the fixed releases, or the same runner if none were given."""
    return running(path, imported, variables) if variables else nullcontext(runner)


def _variables(packages: Sequence[str]) -> dict[str, str]:
    """Return the environment of a process with these releases in place of the current ones. Raises :class:`WrongUse`.

    Computed in another process, as the dependencies differ without the current releases.
    """
    ours = os.environ.get(VARIABLE, "").split(os.pathsep)
    without = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder not in ours]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(without), VARIABLE: ""}
    result = subprocess.run([sys.executable, "-c", _TELL, *packages], env=environment, capture_output=True, text=True)
    if result.returncode:
        last = result.stderr.strip().splitlines()[-1:] or ["it says nothing"]
        raise WrongUse(last[0].rpartition("PackageError: ")[2])
    variables: dict[str, str] = json.loads(result.stdout.splitlines()[-1])
    return variables


def _releases(packages: Sequence[str], race: Race) -> dict[str, str]:
    """Return the releases that were requested, and those of the packages in which the race lies."""
    requested = dict(package.split("==", 1) for package in packages)
    tops = [frame.file.partition("/")[0] for side in (race.first, race.second) for frame in side.stack[:1]]
    local = installed("torch", *(top for top in tops if top.isidentifier()))
    return requested | {name: version for name, version in local.items() if name not in requested and name != "python"}


def count_lines(files: Files) -> int:
    return sum(text.count("\n") for text in files.values())

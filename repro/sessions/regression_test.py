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

from streamrace.detectors.identity import lasting
from streamrace.detectors.order.races import Race, Side
from streamrace.detectors.places import between as lies_between
from streamrace.detectors.places import meant
from streamrace.device.extras import installed
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
from streamrace.reports.formats.regression_test import EmittedTest
from streamrace.repro.sessions.race_selection import BETWEEN, Chosen

_PATIENCE, _LEAST_S = 5, 30.0  # multiple of the program's first duration, and a lower bound
_FIRST_S = 600.0  # limit of the first run
_IMPORTED = "torch._dynamo"  # torch's optimizers import it on first use, which takes seconds

_TELL = """
import json, sys
from streamrace.device.packages import VARIABLE, environment_of
made = environment_of(sys.argv[1:])
print(json.dumps({name: made.get(name, "") for name in ("PYTHONPATH", VARIABLE)}))
"""

Told = Callable[[str], None]


@dataclass(frozen=True)
class AskedTest:
    """The program of a run. ``script``: its file."""

    script: Path
    arguments: tuple[str, ...]
    ranks: int
    packages: tuple[str, ...]

    @classmethod
    def of(cls, found: Chosen) -> AskedTest:
        """Derive the program from a run. Raises :class:`WrongUse` if the run cannot become a test."""
        if not found.own:
            raise WrongUse(
                f"{found.folder} is the run of a scenario: emit-test is of a program that 'streamrace check' ran"
            )
        asked = found.asked
        if asked.get("dry_on_nodes"):
            raise WrongUse(f"{found.folder} is a dry run, and has no values: check the program on one machine's ranks")
        try:
            words = shlex.split(str(asked.get("program", "")))
        except ValueError:
            words = []
        if not words:
            raise WrongUse(f"{found.folder} does not say which program ran")
        if words[0] == "-m":
            raise WrongUse(f"{found.folder} is of a module (-m): emit-test is of a script")
        script = Path(words[0])
        if not script.is_file():
            raise WrongUse(
                f"there is no {words[0]} here, which {found.folder} is of: run emit-test where 'streamrace check' ran"
            )
        ranks = asked.get("ranks", 1)
        if type(ranks) is not int or not 1 <= ranks <= 64:
            raise WrongUse(f"{found.folder} does not say on how many ranks its program ran")
        packages = asked.get("packages", {})
        kept = packages if isinstance(packages, dict) else {}
        return cls(script, tuple(words[1:]), ranks, tuple(one for one, word in kept.items() if word != "beside"))


def there(packages: Sequence[str], asked: Sequence[str]) -> Sequence[str]:
    """Return the releases of the run and the ``asked`` ones. As nothing is installed unasked, a run's release must be
    requested, cached or the environment's. Raises :class:`WrongUse`,
    :class:`streamrace.device.packages.names.PackageError`.
    """
    for one in names.several(packages):
        there = one.is_(names.here(one.name)) or place_of(one, folder_of_releases()).is_dir()
        if str(one) not in asked and not there:
            raise WrongUse(f"the run was with {one.said}, which is not here: say --package {one} to have it installed")
    return [*packages, *(one for one in asked if one not in packages)]


def emit(
    found: Chosen, asked: AskedTest, timing: Timing, named: str, trials: int, told: Told, *, fixed: Sequence[str] = ()
) -> EmittedTest:
    """Create the test. ``named``: the user's name of the race; ``trials``: most smaller programs that are tried;
    ``fixed``: releases with which the test has to pass.

    Raises :class:`WrongUse` if the program, alone in a folder, does not show the race.
    """
    places = _places(found.race, named)
    try:
        its_own = modules.imported(asked.script)
        files: Files = {asked.script.name: modules.read(asked.script), **(its_own.beside if its_own.few else {})}
    except modules.NoProgram as problem:
        raise WrongUse(str(problem)) from None
    needed = [*its_own.packages, *([] if its_own.few else [Path(one).stem for one in its_own.beside])]
    path = [str(asked.script.parent.absolute())] if needed else []
    mended = _variables(fixed) if fixed else {}
    program = Alone(files, asked.arguments, asked.ranks if asked.ranks > 1 else None)
    beforehand = [*_importable(its_own.installed), _IMPORTED]
    with _runner(path, beforehand) as runner, _other(path, beforehand, mended, runner) as other:
        told("the program by itself")
        shows = _shown(program, found, timing, runner)
        if fixed:
            shows.mended = other, places
            if why := shows.unmended(files):
                raise WrongUse(f"with {' '.join(fixed)} the program {why}")
        reduced = Reduced(files, 0, whole=True)
        if trials:
            before = _count(files)

            def progress(done: int, left: Files) -> None:
                told(f"trial {done + 1} of at most {trials}: {_count(left)} lines are left of {before}")

            reduced = reduce(files, shows, budget=trials, told=progress)
    with _runner(path, []) as runner, _other(path, [], mended, runner) as other:
        told("what is left, once more")
        final = replace(shows, runner=runner)
        last = final.look(reduced.files, twice=True)
        if not _same(shows, last):  # the preloaded imports made a difference
            reduced = Reduced(files, reduced.trials, whole=False)
            last = final.look(files, twice=True)
        if last.race is None or not _same(shows, last):
            raise WrongUse(f"the program does not show the race by itself: {last.why or 'what it does to it differs'}")
        witness = last.witness
        token, against = (witness.token, witness.against) if witness and witness.token else ("t1", "t1")
        alone = Alone(reduced.files, shows.program.arguments, shows.program.ranks)
        beside = _others(last.races, places)
        with standing(alone, runner, shows.patience_s) as runs:
            its = judged(runs, places, Timing.parse(token), Timing.parse(against) if against else None, beside)
        if not its.races or not all(lies_between(one, places) for one in its.races):
            raise WrongUse(f"the test would not fail for this race: {its.problem or 'it finds none'}")
        if its.unseen:
            raise WrongUse(f"no test of it could pass: not all that the program does is seen: {'; '.join(its.unseen)}")
        if fixed:
            with standing(alone, other, shows.patience_s) as runs:
                its = judged(runs, places, Timing.parse(token), Timing.parse(against) if against else None, beside)
            if its.problem:
                raise WrongUse(f"with {' '.join(fixed)} the test would fail: {its.problem}")
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
        modules={one: reduced.files[one] for one in others},
        arguments=asked.arguments,
        about=Text(files[name]).docstring if trials else "",
        releases=_releases(asked.packages, last.race),
        needed=needed,
        lines=(_count(files), _count(reduced.files)),
        whole=reduced.whole,
        trials=reduced.trials,
    )


def _shown(program: Alone, found: Chosen, timing: Timing, runner: Runner) -> Shows:
    """Return the criterion for smaller programs, from the whole program. A program on one rank may need a launcher."""
    look = Look()
    for ranks in [program.ranks] if program.ranks else [None, 1]:
        one = replace(program, ranks=ranks)
        shows = Shows(one, lasting(found.race), timing, runner, _FIRST_S)
        began = time.monotonic()
        look = shows.look(program.files, twice=True)
        if look.race is not None:
            shows.patience_s = max(_LEAST_S, _PATIENCE * (time.monotonic() - began))
            shows.known = look.keys
            verdict = look.witness.verdict if look.witness else "not confirmed"
            shows.harm = verdict if verdict != "not confirmed" else ""
            return shows
    raise WrongUse(
        f"{program.name}, alone in a folder{_with(program)}, does not show race {found.number} of {found.folder}: "
        f"{look.why}"
    )


def _with(program: Alone) -> str:
    others = [*program.files][1:]
    return f" with {', '.join(others)}" if others else ""


def _same(shows: Shows, look: Look) -> bool:
    verdict = look.witness.verdict if look.witness else ""
    return look.race is not None and (not shows.harm or verdict == shows.harm)


def _places(race: Race, named: str) -> tuple[str, str]:
    """Return the functions of the two accesses: as named, else the innermost. Not lines, which move."""
    said = [one.strip().rpartition("/")[2] for one in named.split(BETWEEN)]
    if len(said) == 2 and not any(one.rpartition(":")[2].isdigit() for one in said):
        return said[0], said[1]
    return _place(race.first, "first"), _place(race.second, "second")


def _others(races: Sequence[Race], places: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the places of all other races."""
    others = [race for race in races if not lies_between(race, places)]
    return sorted({(_place(race.first, "first"), _place(race.second, "second")) for race in others})


def _place(side: Side, which: str) -> str:
    frame = meant(side.stack)
    if frame is None:
        raise WrongUse(f"nobody knows from where the {which} access of this race comes: no test can look for it")
    function = frame.function.partition(" ")[0]
    return f"{frame.file.rpartition('/')[2]}:{function.rpartition('.')[2] if '<locals>' in function else function}"


def _importable(installed: Sequence[str]) -> list[str]:
    """Return the modules to preload for all runs."""
    standard = sys.stdlib_module_names
    return [one for one in installed if one.partition(".")[0] not in standard]


@contextmanager
def _runner(
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
    return _runner(path, imported, variables) if variables else nullcontext(runner)


def _variables(packages: Sequence[str]) -> dict[str, str]:
    """Return the environment of a process with these releases in place of the current ones. Raises :class:`WrongUse`.

    Computed in another process, as the dependencies differ without the current releases.
    """
    ours = os.environ.get(VARIABLE, "").split(os.pathsep)
    without = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one not in ours]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(without), VARIABLE: ""}
    done = subprocess.run([sys.executable, "-c", _TELL, *packages], env=environment, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it says nothing"]
        raise WrongUse(last[0].rpartition("PackageError: ")[2])
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def _releases(packages: Sequence[str], race: Race) -> dict[str, str]:
    """Return the releases that were requested, and those of the packages in which the race lies."""
    said = dict(one.split("==", 1) for one in packages)
    tops = [frame.file.partition("/")[0] for side in (race.first, race.second) for frame in side.stack[:1]]
    here = installed("torch", *(one for one in tops if one.isidentifier()))
    return said | {name: version for name, version in here.items() if name not in said and name != "python"}


def _count(files: Files) -> int:
    return sum(text.count("\n") for text in files.values())

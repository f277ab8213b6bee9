"""The folders of runs: their names, what marks them, and how they are made."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from streamrace.device.scripts import WrongUse
from streamrace.repro.sessions import places

if TYPE_CHECKING:
    from streamrace.scenarios.job import Job
    from streamrace.scenarios.scenario import Scenario

MARK = "check.json"
ANSWERS = "answers"  # what the ranks' programs say of values, until the run is judged
BY_ITSELF = {"STREAMRACE_CONFIG": ""}  # for a command that another starts: it does what that says, and no file
SEEDED = "seeded.txt"  # from which generators the program drew unseeded, until the run is judged
_RANKS = "ranks"
_LONGEST = 100  # characters of a name that is made of a script's


def asked(
    program: Sequence[str],
    *,
    module: bool,
    ranks: int,
    slow: Mapping[str, float],
    timing: str = "",
    nodes: int = 0,
    packages: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """What was asked for, as a run's folder keeps it. ``nodes``: of a dry run.

    ``packages``: those that stand in place of the environment's, as ``NAME==VERSION``, each with a word on it.
    """
    words = ["-m", *program] if module else list(program)
    return {
        "program": shlex.join(words),
        "ranks": ranks,
        "slow": dict(slow),
        **({"timing": timing} if timing else {}),
        **({"dry_on_nodes": nodes} if nodes else {}),
        **({"packages": dict(packages)} if packages else {}),
    }


def make(path: Path, what: Mapping[str, Any], *, overwrite: bool, key: str = "") -> Path:
    """The folder of a run of a program. ``what`` was asked for; ``key``: of its launcher. Raises :class:`WrongUse`."""

    def write(file: Path) -> None:
        for inner in ("trace", _RANKS) if key else ("trace",):
            (file.parent / inner).mkdir()
        put(file, {"asked": dict(what), "key": key})

    return marked(path, MARK, write, overwrite=overwrite)


def of_scenario(path: Path, scenario: Scenario, *, overwrite: bool) -> Path:
    """The folder of a run of a scenario. Raises :class:`WrongUse`."""
    from streamrace.scenarios.scenario import save

    if scenario.resume and Path(scenario.resume).resolve().is_relative_to(path.resolve()):
        raise WrongUse(f"{path} is the run that is to be resumed: choose another --name")
    return marked(path, "scenario.json", lambda file: save(scenario, file), overwrite=overwrite)


def of_job(path: Path, job: Job, *, overwrite: bool) -> Path:
    """The folder of dry runs of a job. Raises :class:`WrongUse`."""

    def write(file: Path) -> None:
        file.write_text(job.model_dump_json(indent=2) + "\n", encoding="utf-8")

    return marked(path, "job.json", write, overwrite=overwrite)


def marked(path: Path, mark: str, write: Callable[[Path], object], *, overwrite: bool) -> Path:
    """Make the folder ``path``, which is known as a run by the file ``mark`` in it, which ``write`` writes.

    Gives another folder beside it where it replaces a run: :func:`streamrace.repro.sessions.places.keep` puts it in its
    place. Raises :class:`WrongUse` where it is taken, or cannot be made.
    """
    try:
        places.alone(path)
        if path.exists() and not path.is_dir():
            raise WrongUse(f"{path} is a file: choose another --name")
        taken = path.is_dir() and any(path.iterdir())
        if taken and not overwrite:
            raise WrongUse(f"{path} holds a run already: choose another --name, or pass --overwrite")
        if taken and not (path / mark).exists():
            raise WrongUse(f"{path} does not look like a run of this command: choose another --name")
        folder = places.begin(path, replacing=taken)
        write(folder / mark)
    except OSError as error:
        raise WrongUse(f"cannot make the run folder {path}: {error.strerror}") from None
    return folder


def key_of(path: Path) -> str | None:
    """The key of the launcher for which the folder was made. None: it is not there yet."""
    try:
        key = json.loads((path / MARK).read_text(encoding="utf-8"))["key"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return str(key)


def put(file: Path, data: Mapping[str, Any]) -> None:
    """Written whole or not at all: others look for it."""
    beside = file.with_name(f".{file.name}.part")
    beside.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    beside.replace(file)


def processor_of(words: Sequence[str]) -> Mapping[str, str | None] | None:
    """What decided by which kernels a recording was computed, of the folder among ``words``; None: there is none."""
    from streamrace.trace.files import TraceReader, file_of
    from streamrace.trace.records import Begin, TraceError

    for path in (Path(word) for word in words if os.path.isdir(word)):  # a token may be too long for a path
        for trace in (path / "trace", path):
            try:
                reader = TraceReader(file_of(trace, 0))
                first = next(iter(reader.read()), None)
                reader.close()
            except TraceError:
                continue
            recorded = first.info.get("processor") if isinstance(first, Begin) else None
            if isinstance(recorded, dict):
                return {str(name): None if value is None else str(value) for name, value in recorded.items()}
    return None


def of_rank(path: Path, rank: int) -> Path:
    """Where a launcher's rank says how it ended."""
    return path / _RANKS / f"{rank}.json"


def forget_ranks(path: Path) -> None:
    """The run is judged: how each rank ended, and what its program said, is not needed any more."""
    for one in (_RANKS, ANSWERS):
        shutil.rmtree(path / one, ignore_errors=True)
    (path / SEEDED).unlink(missing_ok=True)


def name_of(program: Sequence[str]) -> str:
    """A name for a run of this program, without its time: ``train``."""
    stem = Path(program[0]).stem if program else ""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-")[:_LONGEST] or "program"

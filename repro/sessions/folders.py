"""Creates the folders of runs: their names, and the marker files that identify them."""

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

from streamrace.device.options import EAGER, GPUS
from streamrace.device.scripts import WrongUse
from streamrace.reports.data import whole
from streamrace.repro.sessions import staging

if TYPE_CHECKING:
    from streamrace.scenarios.job import Job
    from streamrace.scenarios.scenario import Scenario

MARK = "check.json"
ANSWERS = "answers"  # answers of the ranks' programs on values, until the run is judged
SEEDED = "seeded.txt"  # generators from which the program drew unseeded, until the run is judged
LIMITS = "limits.txt"  # limits of a library that the program's engine reported, until the run is judged
COMPILED = "compiled.txt"  # ways in which compiled functions ran, until the run is judged
ON_GPU = "on_gpu"  # key of a request: the program ran on a real GPU
OPENED = "opened.jsonl"  # files that the program opened for reading
_RANKS = "ranks"
_LONGEST = 100  # characters of a name derived from a script's


def request(
    program: Sequence[str],
    *,
    module: bool,
    ranks: int,
    slow: Mapping[str, float],
    timing: str = "",
    nodes: int = 0,
    packages: Mapping[str, str] = MappingProxyType({}),
    scale_limits: bool = False,
    compiling: str = EAGER,
    gpus: int = GPUS,
) -> dict[str, Any]:
    """Return the request as a run's folder stores it. ``nodes``: of a dry run.

    ``packages``: replacements of the environment's packages, as ``NAME==VERSION``, each with a note.
    """
    words = ["-m", *program] if module else list(program)
    return {
        "program": shlex.join(words),
        "ranks": ranks,
        "slow": dict(slow),
        **({"timing": timing} if timing else {}),
        **({"dry_on_nodes": nodes} if nodes else {}),
        **({"packages": dict(packages)} if packages else {}),
        **({"scale_limits": True} if scale_limits else {}),
        **({"compile": compiling} if compiling != EAGER else {}),
        **({"gpus": gpus} if gpus != GPUS else {}),
    }


def make(path: Path, request: Mapping[str, Any], *, overwrite: bool, key: str = "") -> Path:
    """Create the folder of a program's run. ``request``: as stored; ``key``: a launcher's. Raises :class:`WrongUse`."""

    def write(file: Path) -> None:
        for inner in ("trace", _RANKS) if key else ("trace",):
            (file.parent / inner).mkdir()
        put(file, {"asked": dict(request), "key": key})

    return marked(path, MARK, write, overwrite=overwrite)


def of_scenario(path: Path, scenario: Scenario, *, overwrite: bool) -> Path:
    """Create the folder of a scenario's run. Raises :class:`WrongUse`."""
    from streamrace.scenarios.scenario import save

    if scenario.resume and Path(scenario.resume).resolve().is_relative_to(path.resolve()):
        raise WrongUse(f"{path} is the run that is to be resumed: choose another --name")
    return marked(path, "scenario.json", lambda file: save(scenario, file), overwrite=overwrite)


def of_job(path: Path, job: Job, *, overwrite: bool) -> Path:
    """Create the folder of a job's dry runs. Raises :class:`WrongUse`."""

    def write(file: Path) -> None:
        file.write_text(job.model_dump_json(indent=2) + "\n", encoding="utf-8")

    return marked(path, "job.json", write, overwrite=overwrite)


def marked(path: Path, mark: str, write: Callable[[Path], object], *, overwrite: bool) -> Path:
    """Create the folder ``path``, identified as a run by the file ``mark``, which ``write`` writes.

    Returns a staging folder if a run is replaced: :func:`.staging.commit` moves it to ``path``.
    Raises :class:`WrongUse` if ``path`` is taken, or cannot be created.
    """
    try:
        staging.exclusive(path)
        if path.exists() and not path.is_dir():
            raise WrongUse(f"{path} is a file: choose another --name")
        taken = path.is_dir() and any(path.iterdir())
        if taken and not overwrite:
            raise WrongUse(f"{path} holds a run already: choose another --name, or pass --overwrite")
        if taken and not (path / mark).exists():
            raise WrongUse(f"{path} does not look like a run of this command: choose another --name")
        folder = staging.begin(path, replacing=taken)
        write(folder / mark)
    except OSError as error:
        raise WrongUse(f"cannot make the run folder {path}: {error.strerror}") from None
    return folder


def key_of(path: Path) -> str | None:
    """Return the key of the launcher for which the folder was created; None if the folder does not exist yet."""
    try:
        key = json.loads((path / MARK).read_text(encoding="utf-8"))["key"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return str(key)


def put(file: Path, data: Mapping[str, Any]) -> None:
    """Write the file atomically, as other processes poll for it."""
    whole.put(file, json.dumps(data, indent=2) + "\n")


def processor_of(words: Sequence[str]) -> Mapping[str, str | None] | None:
    """Return the settings that selected the CPU kernels of the recording among ``words``; None without a recording."""
    from streamrace.trace.files import TraceReader, file_of
    from streamrace.trace.records import Begin, TraceError

    for path in (Path(word) for word in words if os.path.isdir(word)):  # isdir: a token may be too long for a path
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
    """Return the file in which a launcher's rank reports its end."""
    return path / _RANKS / f"{rank}.json"


def forget_ranks(path: Path) -> None:
    """Remove the ranks' reports and answers, once the run is judged."""
    for name in (_RANKS, ANSWERS):
        shutil.rmtree(path / name, ignore_errors=True)
    for name in (SEEDED, LIMITS, COMPILED):
        (path / name).unlink(missing_ok=True)


def name_of(program: Sequence[str]) -> str:
    """Return a name for a run of this program, without its time: ``train``."""
    stem = Path(program[0]).stem if program else ""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-")[:_LONGEST] or "program"

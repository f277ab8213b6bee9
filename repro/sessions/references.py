"""Caches references: the expected values of a scenario, which change only with their inputs.

The key is a hash of all inputs: the scenario, the versions, the file of every loaded module, the processor's kernels. A
reference that depends on files elsewhere (a folder of data, a checkpoint) is never cached.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import torch

from streamrace import scenarios
from streamrace.compiling import folder as kept_folder
from streamrace.compiling import used
from streamrace.detectors import Values
from streamrace.reports.screen.terminal import Progress
from streamrace.repro.sessions.release import versions
from streamrace.repro.sessions.session import reference_of
from streamrace.scenarios.scenario import Scenario

_FORMAT = 1
_MOST = 64  # references; the oldest are removed


def kept_reference(scenario: Scenario, folder: Path, progress: Progress, *, again: bool = False) -> Values:
    """Return :func:`reference_of`, or the cached result of an earlier run. ``again``: ignore the cache.

    Call after all imports that the ranks need, as the loaded modules are part of the key.
    """
    if scenario.data != "sample" or scenario.resume:
        return reference_of(scenario, folder, progress)
    place = kept_folder("references") / f"reference-{_key(scenario)}.msgpack"
    values = None if again else _read(place)
    if values is None:
        values = reference_of(scenario, folder, progress)
        _write(values, place)
        return values
    progress.doing("reference: kept from an earlier run of the same scenario, versions and code")
    show(values, progress)
    return values


def show(reference: Values, progress: Progress) -> None:
    """Show the reference's losses, for comparison with the coming run."""
    for losses in reference.losses.values():
        for loss in losses:
            progress.row(loss.step).reference.append(loss.value)


def _key(scenario: Scenario) -> str:
    """Return the key. The fix is left out: it affects only the simulated GPU."""
    content = hashlib.sha256()
    for word in (
        str(_FORMAT),
        scenario.model_copy(update={"fix": None}).model_dump_json(warnings=False),
        str(sorted(versions().items())),
        sys.version,
        platform.processor() + platform.machine(),
        torch.backends.cpu.get_cpu_capability(),
        str(sorted((name, value) for name, value in os.environ.items() if name.startswith(("ATEN_", "DS_", "TORCH_")))),
        *_files(),
    ):
        content.update(f"{len(word)} {word}".encode(errors="surrogatepass"))
    return content.hexdigest()[:32]


def _files() -> Iterator[str]:
    """Yield every loaded module's file, with size and time, and the data: an edited library is another input."""
    names = {str(file) for module in [*sys.modules.values()] if (file := getattr(module, "__file__", None))}
    names |= {str(path) for path in Path(scenarios.__file__).with_name("data").rglob("*")}
    for name in sorted(names):
        try:
            stat = os.stat(name)
        except OSError:
            continue
        yield f"{name} {stat.st_size} {stat.st_mtime_ns}"


def _write(values: Values, place: Path) -> None:
    content = msgpack.packb([
        _FORMAT,
        [[rank, [list(loss) for loss in losses]] for rank, losses in values.losses.items()],
        [[rank, [list(use) for use in uses]] for rank, uses in values.uses.items()],
        [[rank, list(final.items())] for rank, final in values.final.items()],
        [[rank, list(norms.items())] for rank, norms in values.norms.items()],
    ])  # fmt: skip
    temporary = place.with_suffix(f".{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(hashlib.sha256(content).digest() + content)
        temporary.replace(place)
        files = sorted(place.parent.glob("reference-*.msgpack"), key=lambda file: file.stat().st_mtime)
        for old in files[:-_MOST]:
            old.unlink(missing_ok=True)
    except OSError:
        temporary.unlink(missing_ok=True)  # not cached: the next run computes it again


def _read(place: Path) -> Values | None:
    """Return the cached values; None if missing or damaged."""
    try:
        data = place.read_bytes()
    except OSError:
        return None
    digest, content = data[:32], data[32:]
    if hashlib.sha256(content).digest() != digest:
        return None
    form, *parts = msgpack.unpackb(content, use_list=True, strict_map_key=False)
    if form != _FORMAT or len(parts) != 4:
        return None
    used(place)
    values = Values()
    losses, uses, final, norms = (dict(part) for part in parts)
    for rank in losses:
        values.add(rank, losses[rank], uses.get(rank, ()), norms.get(rank, ()))
    values.final = {rank: _mapping(rows) for rank, rows in final.items()}
    return values


def _mapping(rows: list[Any]) -> dict[str, int]:
    return {str(name): int(sum_) for name, sum_ in rows}

"""Runs a release for a bisection: ``streamrace check`` with it, in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from packaging.version import Version

from streamrace.detectors import Race
from streamrace.detectors.order.races import Side
from streamrace.device.packages import index
from streamrace.device.packages.names import PackageError, parse
from streamrace.repro.sessions import check_process
from streamrace.studies.bisection import Showing


def between(package: str, oldest: str, newest: str) -> list[str]:
    """List all final releases of ``package`` from ``oldest`` to ``newest``, inclusive, oldest first.

    Raises :class:`streamrace.device.packages.names.PackageError` for unknown releases, or ends in the wrong order.
    """
    ends = [
        parse(f"{package}=={version}", option) for version, option in ((oldest, "--from"), (newest, "--to"))
    ]  # fmt: skip
    if Version(ends[0].version) >= Version(ends[1].version):
        raise PackageError(f"--from {ends[0].version} is not before --to {ends[1].version}: name the older one first")
    releases = index.releases(ends[0].name)
    for end, option in zip(ends, ("--from", "--to"), strict=True):
        if end.version not in releases:
            near = index.nearest(end.version, [Version(text) for text in releases])
            raise PackageError(f"{option} {end.version} is no final release of {end.name}: {near}")
    return releases[releases.index(ends[0].version) : releases.index(ends[1].version) + 1]


def show(packages: Sequence[str], words: Sequence[str], folder: Path, name: str) -> Showing:
    """Check the program with ``packages``, and return the outcome. ``words``: ``--ranks 2 train.py`` and the like.

    ``folder`` receives the run as ``name``, and the output as NAME.log.
    """
    try:
        findings = check_process.check(["--witnesses", "0", *words], packages, folder, name)
    except check_process.NoVerdict as failure:
        return Showing(failure=str(failure))
    return Showing(findings.verdict, frozenset(map(sentence_of, findings.races)))


def sentence_of(race: Race) -> str:
    """Describe a race by its kind and the places of its two accesses, which are stable across releases."""
    return f"{race.kind} of {_place(race.first)} and {_place(race.second)}"


def _place(side: Side) -> str:
    if not side.stack:
        return side.kernel
    return f"{side.stack[0].file.rpartition('/')[2]}:{side.stack[0].function.rpartition('.')[2]}"

"""Installs a release in its own folder, once: ``releases/python3.11/deepspeed-0.13.4``.

The release is installed alone (``pip install --no-deps --target``), byte-compiled, so that its first run is not slower
than the second, and moved to its place when complete. If two commands need it at once, one installs it: a lock file
next to the place ensures this, released with the process that holds it (flock(2)).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from streamrace.compiling import BuildError
from streamrace.device import torches
from streamrace.device.packages import index
from streamrace.device.packages.names import Package, PackageError

Tell = Callable[[str], None]

_BUILD_S = 900
_PART = ".part"
_HOOK = Path(__file__).with_name("hook")
# Builds of these packages import torch, so they are not isolated from it, and import it no more often than necessary
# (hook/). Some old releases need torch in each step, and some do not build with today's.
_BUILT_WITH_TORCH = frozenset({"deepspeed"})
_WAYS: tuple[dict[str, str], ...] = (
    {"PYTHONPATH": str(_HOOK)},
    {},
    {"PYTHONPATH": str(_HOOK), "STREAMRACE_BUILD_WITHOUT_TORCH": "1"},
)


def place_of(package: Package, folder: Path) -> Path:
    """Return the release's path below ``folder``, existing or not; torch's CPU build is in the user's cache."""
    if package.name == "torch":
        return torches.place(package.version)
    return folder.absolute() / f"{package.name}-{package.version}"


def distribution(place: Path) -> Distribution | None:
    """Return the distribution in ``place``; None unless there is exactly one."""
    folders = [*place.glob("*.dist-info")]
    return PathDistribution(folders[0]) if len(folders) == 1 else None


def package_in(place: Path) -> Package | None:
    """Return the release that is installed in ``place``, according to its metadata."""
    installed = distribution(place)
    try:
        if installed is None:
            return None
        name, version = canonicalize_name(installed.metadata["Name"]), Version(installed.version)
        return Package(name, version.public if name == "torch" else str(version))  # torch is its CPU build
    except (InvalidVersion, TypeError, KeyError):
        return None


def make(package: Package, folder: Path, tell: Tell) -> Path:
    """Return the folder of the release, after installing it if necessary.

    ``tell`` gets a sentence when it is installed, with its size, and when another command is installing it. Raise
    :class:`PackageError`: no such release, a failed build, an index that cannot be reached, a folder that cannot be
    written.
    """
    place = place_of(package, folder)
    if place.is_dir():
        return place
    if package.name == "torch":
        return _torch(package, tell)
    try:
        with _alone(place, tell):
            if not place.is_dir():
                tell(f"{package.title}: installing into {folder}/, once")
                _pip(package, str(package), place)
                tell(f"{package.title}: installed, {_size(place)}")
    except OSError as error:
        raise PackageError(f"{package.title} cannot be installed in {folder}: {error.strerror}") from error
    return place


def make_some(requirement: Requirement, folder: Path, tell: Tell) -> Path:
    """Return the newest release below ``folder`` that the requirement allows; install one if there is none.

    Installed releases are preferred so that a command runs the same when a newer one is published. Raise
    :class:`PackageError`.
    """
    name = canonicalize_name(requirement.name)
    key = folder.absolute() / f"{name}-any"
    try:
        if place := _fitting(requirement, name, key.parent):
            return place
        with _alone(key, tell):
            return _fitting(requirement, name, key.parent) or _pip(
                Package(name, ""), f"{name}{requirement.specifier}", key
            )
    except OSError as error:
        raise PackageError(f"{name} cannot be installed in {folder}: {error.strerror}") from error


def _fitting(requirement: Requirement, name: str, folder: Path) -> Path | None:
    lying = [place for place in folder.glob(f"{name}-*") if place.is_dir()]
    candidates = [(place, package) for place in lying if (package := package_in(place)) and package.name == name]
    fitting = [pair for pair in candidates if requirement.specifier.contains(pair[1].version, prereleases=True)]
    return max(fitting, key=lambda pair: pair[1].key)[0] if fitting else None


def _pip(package: Package, requirement: str, key: Path) -> Path:
    """Install into a temporary folder first, so that an interrupted installation is not taken for a complete one.

    ``key``: the final folder; if no version was requested, the path under which the lock is held.
    """
    staging = Path(tempfile.mkdtemp(prefix=f".{key.name}.", suffix=_PART, dir=key.parent))
    words = ["install", "--quiet", "--no-deps", "--target", str(staging / "it")]
    release, first = package.title.strip(), ""
    ways: tuple[dict[str, str], ...] = ({},)
    if package.name in _BUILT_WITH_TORCH:
        words.append("--no-build-isolation")
        ways = _WAYS
    try:
        for way in ways:
            # makes builds that list a set list it in the same order each time
            result = index.pip([*words, requirement], seconds=_BUILD_S, more={"PYTHONHASHSEED": "0", **way})
            if not (result.returncode and index.is_broken(result.stderr)):
                break
            first = first or result.stderr
        if result.returncode:
            raise PackageError(f"{release} cannot be installed: {index.reason(first or result.stderr, package)}")
        got = package_in(staging / "it")
        if got is None or got.name != package.name or (package.version and not package.is_(got.version)):
            raise PackageError(f"{release} cannot be installed: pip gave {got.title if got else 'nothing'} instead")
        place = key if package.version else place_of(got, key.parent)
        with suppress(OSError):  # another process may have been faster
            (staging / "it").rename(place)
        if not place.is_dir():
            raise PackageError(f"{release} cannot be installed in {key.parent}: the folder cannot be written")
        return place
    except subprocess.TimeoutExpired:
        raise PackageError(f"{release} cannot be installed: it took over {_BUILD_S} s") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _torch(package: Package, tell: Tell) -> Path:
    try:
        return torches.tree(package.version, tell)
    except BuildError as error:
        raise PackageError(f"{package.title} cannot be installed: {error}") from error


@contextmanager
def _alone(place: Path, tell: Tell) -> Iterator[None]:
    """Keep other commands from creating ``place``. Remove what a killed command has left of it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    file = place.parent / f".{place.name}.lock"
    waits = False
    while True:
        lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        with suppress(OSError):  # a file system without locks
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waits:
                    tell(f"{place.name.removesuffix('-any')}: another command is installing it; waiting for that")
                waits = True
                fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), file.stat()):
                break
        os.close(lock)  # the file of a command that ended just now and removed it
    try:
        for leftover in place.parent.glob(f".{place.name}.*{_PART}"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield
    finally:
        with suppress(OSError):
            file.unlink()
        os.close(lock)


def _size(place: Path) -> str:
    size = sum(file.stat().st_size for file in place.rglob("*") if not file.is_symlink())
    return f"{size / 1e6:,.0f} MB" if size >= 10**7 else f"{size / 1e6:.1f} MB"

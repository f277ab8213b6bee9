"""Environments outside the checkout, each with this project's wheel and exactly what one of its extras brings.

To download torch again for each would take minutes. So the wheel is installed by pip, and the packages that its own
metadata asks for, with all that these ask for, are links to where they are installed already, one by one. Nothing else
of that environment can be seen from here, above all not the checkout that is installed there in place.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement

PROJECT = "streamrace"
_LEFT_OUT = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "DS_ACCELERATOR", "PYTEST_ADDOPTS", "PYTEST_PLUGINS")


@dataclass(frozen=True)
class Environment:
    """``place``: the virtual environment; ``folder``: where commands are run, with nothing of the project in it."""

    place: Path
    folder: Path

    @property
    def packages(self) -> Path:
        return self.place / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    def repro(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command that the wheel installs."""
        return self._run(str(self.place / "bin" / "streamrace"), *arguments)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run(str(self.place / "bin" / "python"), *arguments)

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
        return subprocess.run(command, cwd=self.folder, env=kept, capture_output=True, text=True, timeout=200)


def environment(wheel: Path, extras: Iterable[str], beside: Iterable[str], place: Path, folder: Path) -> Environment:
    """A new environment in ``place`` with ``wheel[extras]`` and the packages ``beside`` it."""
    venv.create(place, with_pip=False, symlinks=True)
    made = Environment(place, folder)
    asked = [*_asked(_requirements(wheel), extras), *(Requirement(name) for name in beside)]
    for one in _closure(asked, _requirements(wheel)).values():
        _link(one, made.packages)
    install = ["install", "--quiet", "--no-input", "--disable-pip-version-check", "--no-index", "--no-deps", str(wheel)]
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python")]
    subprocess.run([*pip, *install], check=True, timeout=100, cwd=folder)
    return made


def _requirements(wheel: Path) -> list[str]:
    with ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(file.read(name).decode()).get_all("Requires-Dist", [])


def _asked(requirements: Iterable[str], extras: Iterable[str]) -> list[Requirement]:
    """Those that hold here, with these extras."""
    every = [Requirement(text) for text in requirements]
    environments = [{"extra": extra} for extra in ("", *extras)]
    return [one for one in every if one.marker is None or any(map(one.marker.evaluate, environments))]


def _closure(asked: Iterable[Requirement], ours: list[str]) -> dict[str, Distribution]:
    """What pip would install for ``asked``, by name. ``ours``: the requirements of the project itself."""
    found: dict[str, Distribution] = {}
    seen: set[str] = set()
    waiting = list(asked)
    while waiting:
        one = waiting.pop()
        if str(one) in seen:
            continue
        seen.add(str(one))
        if one.name == PROJECT:
            waiting += _asked(ours, one.extras)
            continue
        there = distribution(one.name)
        assert one.specifier.contains(there.version, prereleases=True), f"{one} is asked for, {there.version} is here"
        found[there.name] = there
        waiting += _asked(there.requires or [], one.extras)
    return found


def _link(one: Distribution, packages: Path) -> None:
    """Each file or folder of the distribution at the top of ``packages``; scripts beside it are left out."""
    tops = {file.parts[0] for file in one.files or () if file.parts[0] not in ("..", "__pycache__")}
    assert tops, f"{one.name} has no list of its files"
    for top in sorted(tops):
        link = packages / top
        if not link.exists():  # a folder that several distributions share is one link
            link.symlink_to(Path(str(one.locate_file(top))).resolve())

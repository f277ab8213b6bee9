"""A package index of this test's own: a folder of wheels, each with a file or two."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest


def wheel(
    folder: Path, name: str, version: str, text: str = "", requires: Sequence[str] = (), module: str = ""
) -> None:
    """Write the wheel of a package that is one module, ``text``; ``module``: its name, where that is another."""
    info = f"{name}-{version}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{module or name}.py": text or f"VERSION = '{version}'\n",
        f"{info}/METADATA": head + "".join(f"Requires-Dist: {one}\n" for one in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for file, content in (files | {f"{info}/RECORD": record}).items():
            archive.writestr(file, content)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the wheels that pip can have, and no others."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("STREAMRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return folder

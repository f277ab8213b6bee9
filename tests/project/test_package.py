"""What is installed is what is tested: a wheel has all files that the packages need, and no others."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path
from typing import Any

from setuptools import find_packages

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS: dict[str, Any] = PROJECT["tool"]["setuptools"]
PACKAGES = ("repro", "accounts", "detectors", "fuzz", "scenarios", "studies", "reports")


def tracked() -> set[Path]:
    """The packages' files, as git has them: what lies beside them (caches, an editor's copies) is nobody's."""
    done = subprocess.run(["git", "ls-files", "-z", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    return {Path(name) for name in done.stdout.split("\0") if name}


def packed() -> set[Path]:
    """What pyproject.toml gives to setuptools beside modules."""
    found: set[Path] = set()
    for name, patterns in SETUPTOOLS["package-data"].items():
        for package in installed() if name == "*" else {name}:
            place = ROOT.joinpath(*package.split("."))
            found |= {path.relative_to(ROOT) for pattern in patterns for path in place.glob(pattern)}
    return found


def installed() -> set[str]:
    return set(find_packages(str(ROOT), **{"include": SETUPTOOLS["packages"]["find"]["include"]}))


def test_a_wheel_has_every_module() -> None:
    folders = {str(path.parent).replace("/", ".") for path in tracked() if path.suffix == ".py"}
    assert folders == installed()


def test_a_wheel_has_every_template_profile_and_question() -> None:
    wanted = {path for path in tracked() if path.suffix != ".py"}
    assert {path.suffix for path in wanted} >= {".html", ".css", ".md", ".toml", ".csv"}
    assert wanted == packed()

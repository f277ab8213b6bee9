"""``make`` sets up the environment that it made itself, once for what the files ask for, and changes no other one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# In place of Python: it makes environments that have itself, runs our own tool, and only notes all else (pip, builds).
_PYTHON = f"""\
#!/bin/sh
case "$*" in
  tools/environment.py*) exec "{sys.executable}" "$@" ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
esac
echo "$*" >> calls
[ ! -e broken ] || case "$*" in *requirements-dev.txt*) exit 1 ;; esac
"""


class House:
    """A checkout with what a set-up reads, and a Python that notes what it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("Makefile", "requirements.txt", "requirements-dev.txt", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)
        shutil.copytree(ROOT / "tools", folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        python = folder / "python"
        python.write_text(_PYTHON)
        python.chmod(0o755)

    def make(self, *words: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        command = ["make", f"PYTHON={self.folder}/python", *words]
        return subprocess.run(command, cwd=self.folder, env=clean, capture_output=True, text=True, timeout=100)

    def installs(self) -> int:
        """How often pip has been asked for all that is pinned, since this was asked the last time."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return sum("--requirement requirements-dev.txt" in line for line in lines)


@pytest.fixture
def house(tmp_path: Path) -> House:
    (tmp_path / "house").mkdir()
    return House(tmp_path / "house")


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(file.relative_to(folder)): (file.stat().st_mtime_ns, file.read_bytes())
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_what_is_installed_is_not_installed_again_by_a_checkout_that_touches_files(house: House) -> None:
    done = house.make("setup")
    assert (done.returncode, done.stderr, house.installs()) == (0, "", 1)
    assert done.stdout.endswith("setup: .venv is ready\n")
    for name in ("requirements.txt", "requirements-dev.txt", "pyproject.toml"):
        (house.folder / name).touch()
    assert (house.make("setup").stdout, house.installs()) == ("setup: .venv is ready\n", 0)


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt", "pyproject.toml"])
def test_another_content_is_installed_though_its_time_is_older(house: House, name: str) -> None:
    house.make("setup")
    house.installs()
    file = house.folder / name
    file.write_text(f"{file.read_text()}\n# another one\n")
    os.utime(file, (0, 0))
    assert (house.make("setup").returncode, house.installs()) == (0, 1)
    assert (house.make("setup").returncode, house.installs()) == (0, 0)


def test_a_set_up_that_broke_off_goes_on(house: House) -> None:
    (house.folder / "broken").touch()
    assert house.make("setup").returncode != 0
    assert house.installs() == 1
    (house.folder / "broken").unlink()
    assert (house.make("setup").returncode, house.installs()) == (0, 1)


def test_an_environment_of_the_users_own_is_not_changed(house: House) -> None:
    theirs = house.folder / ".venv"
    (theirs / "bin").mkdir(parents=True)
    (theirs / "pyvenv.cfg").write_text("home = elsewhere\n")
    before = contents(theirs)
    done = house.make("setup")
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == (
        "Error: .venv was not made by this set-up; nothing is changed there: run make VENV=FOLDER, for an environment "
        "in another folder, or remove it."
    )
    assert house.make("distclean").returncode != 0
    assert (contents(theirs), house.installs()) == (before, 0)

    done = house.make("setup", "VENV=.mine")
    assert (done.returncode, done.stdout.splitlines()[-1], house.installs()) == (0, "setup: .mine is ready", 1)
    assert contents(theirs) == before


def test_another_checkouts_environment_is_not_changed_linked_or_named(house: House, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = House(tmp_path / "other")
    other.make("setup")
    theirs = other.folder / ".venv"
    before = contents(theirs)
    (house.folder / ".venv").symlink_to(theirs)
    done = house.make("setup")
    assert done.returncode != 0
    assert done.stderr.startswith(f"Error: .venv is a link to {theirs}; nothing is changed there: run make VENV=FOLDER")
    done = house.make("setup", f"VENV={theirs}")
    assert done.returncode != 0
    assert f"is the environment of the checkout {other.folder}; nothing is changed there" in done.stderr
    assert (contents(theirs), house.installs()) == (before, 0)

    assert house.make("distclean").returncode == 0
    assert not (house.folder / ".venv").is_symlink()
    assert contents(theirs) == before


def test_a_checkout_that_was_moved_is_set_up_again(house: House, tmp_path: Path) -> None:
    house.make("setup")
    house.installs()
    house.folder.rename(tmp_path / "moved")
    house.folder = tmp_path / "moved"
    assert (house.make("setup").returncode, house.installs()) == (0, 1)


def test_a_link_to_what_this_set_up_made_is_ready(house: House, tmp_path: Path) -> None:
    house.make("setup")
    (house.folder / ".venv").rename(tmp_path / "on another disk")
    (house.folder / ".venv").symlink_to(tmp_path / "on another disk")
    house.installs()
    assert (house.make("setup").returncode, house.installs()) == (0, 0)


def test_the_stamp_of_an_earlier_set_up_is_ours(house: House) -> None:
    house.make("setup")
    house.installs()
    (house.folder / ".venv" / ".ready").write_text("")
    assert (house.make("setup").returncode, house.installs()) == (0, 1)

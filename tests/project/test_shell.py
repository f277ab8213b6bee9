"""What is printed to be typed runs where it is printed, and who starts the tool elsewhere is told where it runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from streamrace.reports.text import replays, reports_on, typed
from streamrace.repro.__main__ import main
from streamrace.repro.commands.table import COMMANDS, SECTIONS
from tests.warm import Here

ROOT = Path(__file__).resolve().parents[2]


def bare(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The checkout by a Python that has nothing installed: only the standard library."""
    path = f"import sys; sys.path.insert(0, {str(ROOT)!r})"
    code = f"{path}; from streamrace.repro.__main__ import main; main({[*arguments]!r})"
    command = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


def test_the_doctor_runs_by_a_python_without_the_packages_too() -> None:
    done = bare("doctor")
    assert done.returncode == 1 and not done.stderr
    made = (ROOT / ".venv" / "bin" / "python").exists()
    assert f"-> {f'. {ROOT}/.venv/bin/activate' if made else f'make -C {ROOT} setup'}" in done.stdout


@pytest.mark.parametrize("arguments", [("run",), ("--help",), ("watch", "tests/warm.py"), ()])
def test_a_python_without_the_packages_says_which_one_has_them(arguments: tuple[str, ...]) -> None:
    done = bare(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: this Python (") and "'. .venv/bin/activate'" in line


def test_a_python_that_is_too_old_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18, "final", 0))
    with pytest.raises(SystemExit) as end:
        main(["run"])
    assert end.value.code == 2
    assert "Python 3.11 or newer is needed" in capsys.readouterr().err


def test_a_command_is_printed_as_it_runs_in_this_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "my project" / ".venv" / "bin"
    other = tmp_path / "bin"
    for folder in (place, other):
        folder.mkdir(parents=True)
        for name in ("python", "streamrace"):
            (folder / name).write_text("#!/bin/sh\n")
            (folder / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(place / "python"))
    monkeypatch.chdir(place.parents[1])
    monkeypatch.setenv("PATH", os.pathsep.join([str(place), str(other)]))
    assert typed(replays("t1,hpz")) == "streamrace replay t1,hpz"  # the environment is activated
    monkeypatch.setenv("PATH", str(other))
    assert typed(replays("t1,hpz")) == ".venv/bin/streamrace replay t1,hpz"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert typed(replays("t1,hpz")) == ".venv/bin/streamrace replay t1,hpz"
    monkeypatch.chdir(other)
    assert typed(replays("t1,hpz")) == f"'{place}/streamrace' replay t1,hpz"
    assert typed("python -m pytest it.py") == f"'{place}/python' -m pytest it.py"
    (place / "streamrace").unlink()  # a checkout that is in the import path, and not installed
    assert typed(replays("t1,hpz")) == f"'{place}/python' -m streamrace replay t1,hpz"
    assert typed("torchrun train.py") == "torchrun train.py"
    assert reports_on(Path("runs/my run")) == "streamrace report 'runs/my run'"


@pytest.mark.parametrize(
    ("typed_words", "completed"),
    [
        ("streamrace ca", ["calibrate", "catalogue", "cache"]),
        ("streamrace dev", ["device"]),
        ("streamrace check --stri", ["--strict"]),
        ("streamrace dry --checkp", ["--checkpointing"]),
        ("streamrace waits --format js", ["json"]),
    ],
)
def test_a_shell_completes_commands_and_options(typed_words: str, completed: list[str]) -> None:
    words = {"COMP_WORDS": typed_words, "COMP_CWORD": str(len(typed_words.split()) - 1)}
    environment = {**os.environ, **words, "_STREAMRACE_COMPLETE": "bash_complete"}
    command = [sys.executable, "-m", "streamrace"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == completed, done.stderr


def test_make_help_names_every_command_and_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name, command in COMMANDS.items():
        assert f"  {name} " in shown and command.text in shown
    assert "make repro-unstable" in shown


def test_the_help_lists_each_command_once_under_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    shown = capsys.readouterr().out
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(COMMANDS)
    rows = [line.split()[0] for line in shown.partition("First steps:")[2].splitlines() if re.match(r"  \w", line)]
    assert rows == [name for names in SECTIONS.values() for name in names]
    assert all(f"\n{heading}:\n" in shown for heading in SECTIONS)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["chek", "train.py"], "No such command 'chek' (did you mean 'check'?)."),
        (["devise", "train.py"], "No such command 'devise' (did you mean 'device'?)."),
        (["zzz"], "No such command 'zzz'."),
        (["check", "--overwrit", "train.py"], "No such option '--overwrit'. Did you mean '--overwrite'?"),
        (["device", "--rnks", "2", "train.py"], "unrecognized arguments --rnks (did you mean '--ranks'?)"),
        (["catalogue", "ds5095"], "'ds5095' is not in the catalogue: is it ds5059 or"),
        (["list", "scenaros"], "There are no names of the kind 'scenaros' (did you mean 'scenarios'?): choose one of"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_one_that_is_meant(arguments: list[str], sentence: str) -> None:
    done = Here().run("-m", "streamrace", *arguments)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())


def test_a_compiled_file_that_a_full_disk_cut_off_is_named(tmp_path: Path) -> None:
    def cache() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "streamrace", "cache"]
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False
        )

    assert cache().returncode == 0
    (compiled,) = tmp_path.rglob("commands/cache.*.pyc")
    compiled.write_bytes(compiled.read_bytes()[:100])
    done = cache()
    assert done.returncode == 2
    assert "a compiled file of Python is cut off" in done.stderr and "__pycache__" in done.stderr

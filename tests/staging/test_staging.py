"""What replaces a run is written beside it and put in its place whole; nobody else writes there meanwhile."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from streamrace.device.scripts import WrongUse
from streamrace.repro.__main__ import main
from streamrace.repro.sessions import folders, staging

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """``command("--overwrite")``: a command that writes a table, its exit status and what it said."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str]:
        try:
            main(["kernels", *arguments])
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        return status, capfd.readouterr().err

    return call


@pytest.fixture
def old(command: Command) -> Path:
    """A run that was made before, with something of its user's in it."""
    assert command() == (0, "")
    (Path("runs/kernels") / "notes.txt").write_text("years of work")
    return Path("runs/kernels")


def in_the_middle(monkeypatch: pytest.MonkeyPatch, happens: Callable[[Path], object]) -> None:
    """While the command writes its table, half of it is written; the whole, if nothing is raised then."""
    whole = pd.DataFrame.to_csv

    def write(self: Any, file: Path | None = None, **options: Any) -> str | None:
        if file is not None:
            file.write_text("half of it")
            happens(file.parent)
        text: str | None = whole(self, file, **options)
        return text

    monkeypatch.setattr(pd.DataFrame, "to_csv", write)


def raising(error: BaseException) -> Callable[[Path], object]:
    def happens(_: Path) -> None:
        raise error

    return happens


def test_a_run_is_replaced_when_the_new_one_is_whole(
    command: Command, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def look(folder: Path) -> None:
        seen.append((folder, (old / "notes.txt").read_text(), (old / "kernels.csv").stat().st_size > 100))

    in_the_middle(monkeypatch, look)
    assert command("--overwrite") == (0, "")
    assert seen == [(Path("runs/kernels.new"), "years of work", True)]
    assert {path.name for path in old.iterdir()} == {"check.json", "kernels.csv", "report", "study.json"}
    assert len((old / "kernels.csv").read_text()) > 100
    assert os.listdir("runs") == ["kernels"]


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a file"), 2, "Error: cannot write a file: No space left"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS), "a file"), 2, "Error: cannot write a file: Read-only"),
        (WrongUse("this cannot be had"), 2, "Error: this cannot be had\n"),
    ],
)
def test_a_run_that_is_refused_leaves_nothing_but_the_old_one(
    error: Exception, status: int, said: str, command: Command, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_middle(monkeypatch, raising(error))
    ended, told = command("--overwrite")
    assert (ended, told.startswith(said), told.count("\n")) == (status, True, 1)
    assert (old / "notes.txt").read_text() == "years of work"
    assert os.listdir("runs") == ["kernels"]
    assert command("--name", "first")[0] == status
    assert os.listdir("runs") == ["kernels"]


def test_what_an_interrupted_run_leaves_is_said(command: Command, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_middle(monkeypatch, raising(KeyboardInterrupt()))
    status, said = command("--overwrite")
    assert status == 130
    assert said.strip() == "Interrupted. runs/kernels is as it was; what this command left is runs/kernels.new."
    assert (old / "notes.txt").read_text() == "years of work"
    assert Path("runs/kernels.new/kernels.csv").read_text() == "half of it"


def test_a_command_that_leaves_in_the_middle_has_no_whole_run(
    command: Command, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As rich does where nobody reads its output any more (``| head -1``)."""
    in_the_middle(monkeypatch, raising(SystemExit(1)))
    assert command("--overwrite") == (1, "")
    assert (old / "notes.txt").read_text() == "years of work"
    assert Path("runs/kernels.new/kernels.csv").read_text() == "half of it"


def test_what_a_killed_run_left_is_no_hindrance(command: Command, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path.cwd()
    in_the_middle(monkeypatch, lambda _: os.kill(os.getpid(), signal.SIGKILL))
    pid = os.fork()
    if pid == 0:
        try:
            command("--overwrite")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert (old / "notes.txt").read_text() == "years of work"
    assert {*os.listdir("runs")} == {"kernels", "kernels.new", ".kernels.lock"}
    monkeypatch.undo()
    monkeypatch.chdir(place)
    assert command("--overwrite") == (0, "")
    assert os.listdir("runs") == ["kernels"]


def test_two_commands_never_write_one_run(command: Command, old: Path) -> None:
    other = os.open("runs/.kernels.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert command("--overwrite") == (
        2, "Error: another command writes runs/kernels now: wait for its end, or write to another place\n",
    )  # fmt: skip
    assert (old / "notes.txt").read_text() == "years of work"
    assert command("--name", "another") == (0, "")
    os.close(other)
    assert command("--overwrite") == (0, "")
    assert {*os.listdir("runs")} == {"another", "kernels"}


def test_a_lock_holds_between_two_commands_and_dies_with_the_first(tmp_path: Path) -> None:
    place = tmp_path / "it"
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        with staging.locked(place):
            os.write(told, b"!")
            signal.pause()
    os.read(ready, 1)
    with pytest.raises(WrongUse, match="another command writes"), staging.locked(place):
        pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with staging.locked(place):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("lacking", [False, True])
def test_runs_are_exchanged_also_where_the_system_cannot_do_it_at_once(
    lacking: bool, command: Command, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacking:
        monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert command("--overwrite") == (0, "")
    assert os.listdir("runs") == ["kernels"]
    assert not (old / "notes.txt").exists()


def test_a_run_that_is_a_link_is_replaced_and_what_it_leads_to_is_left(command: Command, old: Path) -> None:
    old.rename("elsewhere")
    old.symlink_to(Path("elsewhere").absolute())
    assert command("--overwrite") == (0, "")
    assert not old.is_symlink()
    assert (Path("elsewhere") / "notes.txt").read_text() == "years of work"
    assert os.listdir("runs") == ["kernels"]


def test_what_killed_recordings_left_is_removed_and_what_is_written_now_is_not(tmp_path: Path) -> None:
    for name in ("killed", "written"):
        (tmp_path / f"{name}.new" / "trace").mkdir(parents=True)
    lock = os.open(tmp_path / ".written.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    staging.clear(tmp_path)
    os.close(lock)
    assert {*os.listdir(tmp_path)} == {"written.new", ".written.lock"}


def test_what_a_program_leaves_running_holds_no_lock(tmp_path: Path) -> None:
    """It is forked from a fork of the command, which has said so."""
    with staging.settled(lambda error: False):
        staging.exclusive(tmp_path / "it")
        pid = os.fork()
        if pid == 0:
            staging.cleanup()
            signal.pause()
    with staging.locked(tmp_path / "it"):
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)  # it still runs
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "..", ".", "", ".hidden", "nul\0", "line\nbreak", "\x1b[2J", "\udcff", "n" * 300, "it.new"]
)
def test_a_name_is_one_of_a_folder_in_its_place(name: str, command: Command, tmp_path: Path) -> None:
    status, said = command("--name", name)
    assert status == 2
    assert "Error: Invalid value for '--name': " in said.splitlines()[-1]
    assert said.isprintable() or set(said) - set("\n") <= {one for one in said if one.isprintable()}
    assert os.listdir(tmp_path) == []


def test_a_script_with_a_long_name_has_a_run_with_a_shorter_one() -> None:
    assert folders.name_of(["s" * 300 + ".py"]) == "s" * 100


@pytest.fixture
def printing_to(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """``printing_to(descriptor)``: there goes what is printed from here on."""
    before = os.dup(1)

    def turn(descriptor: int) -> None:
        monkeypatch.setattr(sys, "stdout", os.fdopen(descriptor, "w", closefd=False))

    yield turn
    os.dup2(before, 1)


def test_standard_output_that_is_full_is_one_sentence(command: Command, printing_to: Callable[[int], None]) -> None:
    printing_to(os.open("/dev/full", os.O_WRONLY))
    assert command() == (2, "Error: cannot write standard output: No space left on device\n")
    assert os.listdir("runs") == ["kernels"]


def test_who_reads_no_further_is_not_told_of_it(command: Command, printing_to: Callable[[int], None]) -> None:
    """``streamrace kernels | head -1``."""
    reader, writer = os.pipe()
    os.close(reader)
    printing_to(writer)
    status, said = command()
    assert status in (1, 141)  # rich has its own
    assert said == ""

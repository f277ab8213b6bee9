"""What is kept for later commands is listed, and removed when nobody uses it: ``streamrace cache``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from streamrace import checkout
from streamrace.checkout import cache as folder_of_cache
from streamrace.device import cache_entries
from streamrace.device.packages import folder_of_releases
from streamrace.repro.__main__ import main
from tests.warm import ROOT

DAY_S = 86400


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two releases, one of them not used for long, a CPU build of torch, and what a kill has left."""
    monkeypatch.setenv("STREAMRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(
        cache_entries.checkout, "root", lambda: None
    )  # what is compiled there is of use to the other tests
    for name in ("leaf-7.0", "stem-1.0", ".stem-1.1.x7.part"):
        (folder_of_releases() / name).mkdir(parents=True)
        (folder_of_releases() / name / "code.py").write_text("VERSION = 1\n" * 1000)
    os.utime(folder_of_releases() / "leaf-7.0", (time.time() - 40 * DAY_S,) * 2)
    (folder_of_cache() / "torch" / "2.13.0-cpython-311" / "torch").mkdir(parents=True)
    (folder_of_cache() / "libsimgpu-0123456789abcdef.so").write_bytes(b"\0" * 2_000_000)
    (folder_of_cache() / "torch" / "lock").touch()
    return folder_of_cache()


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit status and what is said."""
    status = 0
    try:
        main(["cache", *words])
    except SystemExit as end:
        status = int(end.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


def test_all_that_is_kept_is_listed_with_its_size_and_last_use(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    assert status == 0
    assert f"leaf-7.0 release of a package, {python} 0.0 MB 40 days ago" in lines
    assert f"stem-1.0 release of a package, {python} 0.0 MB today" in lines
    assert "torch-2.13.0-cpython-311 CPU build of torch 0.0 MB today" in lines
    assert "libsimgpu compiled part 2.0 MB today" in lines
    assert "stem-1.1.x7.part left by a command that was killed 0.0 MB today" in lines
    assert f"2.0 MB in {cache}" in lines


def test_what_was_not_used_for_long_goes_and_the_rest_stays(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "clear", "release", "--older-than", "30")
    assert (status, out) == (0, "Removed, 0.0 MB: leaf-7.0.\n")
    assert sorted(one.name for one in cache_entries.everything()) == [
        "libsimgpu", "stem-1.0", "stem-1.1.x7.part", "torch-2.13.0-cpython-311",
    ]  # fmt: skip
    assert run(capsys, "clear", "--older-than", "30")[1] == "There is nothing to remove.\n"


def test_a_name_goes_alone_and_without_one_all_goes(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "clear", "stem-1.0")[:2] == (0, "Removed, 0.0 MB: stem-1.0.\n")
    assert run(capsys, "clear")[0] == 0
    assert cache_entries.everything() == []
    assert run(capsys)[1] == f"Nothing is kept in {cache}.\n"


def test_what_a_running_command_uses_stays(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command imports one release; the other goes, and so does that one when the command has ended."""
    used = folder_of_releases() / "stem-1.0"
    code = "from streamrace.device.cache_entries import hold; hold(); print(flush=True); input()"
    user = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join([str(used), str(ROOT)])},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert user.stdout is not None
    user.stdout.readline()
    assert "stem-1.0 release" in " ".join(run(capsys)[1].split()) and " in use" in run(capsys)[1]
    status, out, err = run(capsys, "clear", "release")
    assert (status, out) == (2, "Removed, 0.0 MB: leaf-7.0.\n")
    assert err == "Error: a running command uses stem-1.0: it stays; clear it when that command has ended\n"
    assert (used / "code.py").exists()

    user.communicate(b"\n")
    assert run(capsys, "clear", "release")[:2] == (0, "Removed, 0.0 MB: stem-1.0.\n")


def test_what_is_being_installed_is_not_taken_for_what_a_kill_has_left(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import fcntl

    with (folder_of_releases() / ".stem-1.1.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run(capsys, "clear", "unfinished")[0] == 2
    assert run(capsys, "clear", "unfinished")[:2] == (0, "Removed, 0.0 MB: stem-1.1.x7.part.\n")


def test_to_use_a_release_is_its_last_use(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = folder_of_releases() / "leaf-7.0"
    monkeypatch.setattr(cache_entries, "_held", {})
    monkeypatch.syspath_prepend(place)
    cache_entries.hold()
    (one,) = (one for one in cache_entries.everything() if one.name == "leaf-7.0")
    assert one.in_use and time.time() - one.last < DAY_S


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("clear", "nobody"), "nothing of the name 'nobody' is kept: 'streamrace cache' lists what is"),
        (("clean",), "'clean' is not an action on the cache: say clear, or nothing."),
        (("--older-than", "3"), "--older-than says what to clear: streamrace cache clear --older-than DAYS"),
    ],
)
def test_a_mistake_is_one_sentence(
    cache: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    status, out, err = run(capsys, *words)
    assert (status, out, err.splitlines()[-1]) == (2, "", f"Error: {sentence}")


def test_a_release_is_no_file_of_the_user_in_any_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its frames would end a stack, and the program's own line would be missing."""
    file = str(tmp_path / "kept" / "releases" / "deepspeed-0.13.4" / "deepspeed" / "runtime" / "engine.py")
    assert not checkout.installed(file)
    monkeypatch.setenv("STREAMRACE_CACHE", str(tmp_path / "kept"))
    assert checkout.installed(file) and not checkout.installed(str(tmp_path / "kept.py"))

"""What the tests start as a fork does what it does as ``python`` starts it (tests/warm.py)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from tests.faults import Job
from tests.warm import Here, Source, Warm

TELLS = """
import atexit, os, signal, sys, threading
import beside

atexit.register(print, "the end")
threading.Thread(target=threading.main_thread().join).start()
print(__name__, sys.argv, os.getcwd(), sys.path[0], beside.word, sorted(os.environ), sys.stdin.read())
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM))
print(os.getpid() == os.getsid(0), sys.stdout.isatty(), sys.stdout.line_buffering, sys.stdout.encoding)
print("told", file=sys.stderr)
{end}
"""
KILLED = "os.kill(os.getpid(), 9)"  # and what was printed is not written
ENDS = ["", "no python", "sys.exit(7)", "sys.exit('why')", "raise ValueError('what the script says')", KILLED]

WAITS = """
import os
try:
    print("waits", flush=True)
    while True:
        os.sched_yield()
except KeyboardInterrupt:
    print("interrupted")
    raise SystemExit(130)
"""


@pytest.fixture(scope="module", params=["here", "warm"])
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    if request.param == "here":
        yield Here()
        return
    warm = Warm([], simulated=False, environment=os.environ)
    yield warm
    warm.close()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("arguments", [("train.py", "--its", "own"), ("-m", "train", "--its", "own")])
def test_a_fork_is_as_an_interpreter_of_its_own(
    arguments: tuple[str, ...], end: str, source: Source, tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text("word = 'beside'\n")
    (tmp_path / "train.py").write_text(TELLS.format(end=end))
    shell = {"PATH": os.environ["PATH"], "PYTHONIOENCODING": "utf-8", "LC_ALL": "C.UTF-8"}
    alone = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, env=shell, input="said", capture_output=True, text=True
    )
    forked = source.run(*arguments, folder=tmp_path, environment=shell, said="said")
    assert forked.returncode == alone.returncode
    assert forked.stdout == alone.stdout
    assert "beside" in forked.stdout or end in ("no python", KILLED)
    if arguments[0] == "-m":  # there the interpreter shows runpy's frames
        assert forked.stderr.splitlines()[-1] == alone.stderr.splitlines()[-1]
    else:
        assert forked.stderr == alone.stderr


def test_ctrl_c_comes_to_what_is_read_while_it_runs(source: Source, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background
    try:
        started = source.start("waits.py", folder=tmp_path, session=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert started.stdout.readline() == "waits\n"
    assert os.getsid(started.pid) == started.pid and started.poll() is None
    started.send_signal(signal.SIGINT)
    assert started.communicate() == started.communicate() == ("interrupted\n", "")
    assert started.returncode == 130


RANKS = """
import os
ranks = []
while len(ranks) < 3 and 0 not in ranks:
    ranks.append(os.fork())
for _ in range(1000):
    os.write(1, b"a line\\n")
    os.write(2, b"another\\n")
for rank in ranks:
    if 0 not in ranks:
        os.waitpid(rank, 0)
"""


def test_what_ranks_write_at_the_same_time_is_all_there(source: Source, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    done = source.run("train.py", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, 4000 * "a line\n", 4000 * "another\n")


def test_what_the_tests_own_process_does_with_errors_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.distributed puts a hook of its own before Python's, with each group that is made."""
    monkeypatch.setattr(sys, "excepthook", lambda *_: print("[rank0]: told otherwise", file=sys.stderr))
    (tmp_path / "train.py").write_text("raise ValueError('what the script says')\n")
    said = Here().run("train.py", folder=tmp_path).stderr
    assert said.endswith("ValueError: what the script says\n") and "rank0" not in said


def test_a_warm_process_may_be_a_fork_of_another_that_knows_less(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print([one in sys.modules for one in ('wave', 'colorsys')])\n")
    first = Warm(["wave"], environment=os.environ)
    second = Warm(["colorsys"], environment=os.environ, of=first)
    assert second.run("train.py", folder=tmp_path).stdout == "[True, True]\n"
    assert first.run("train.py", folder=tmp_path).stdout == "[True, False]\n"
    second.close()
    first.close()


def test_what_a_job_writes_to_a_pipe_is_read_and_an_end_without_it_is_told(tmp_path: Path) -> None:
    """Who reads a pipe that nobody opens waits for ever."""
    os.mkfifo(tmp_path / "pipe")
    for script, found in (("open('pipe', 'w').write('12 15')", "12 15"), ("raise SystemExit('why')", "")):
        (tmp_path / "train.py").write_text(script)
        job = Job(Here(), "train.py", folder=tmp_path)
        if found:
            assert job.reads(tmp_path / "pipe") == found
        else:
            with pytest.raises(AssertionError, match="it ended and wrote nothing to pipe.*why"):
                job.reads(tmp_path / "pipe")
        job.close()


STUCK = """
import os, select, signal, sys
reader, writer = os.pipe()
rank = os.fork()

def collective():
    os.read(reader, 1) if rank else os.write(writer, b"here")
    while True:
        if rank:
            os.kill(int(sys.argv[1]), signal.SIGUSR1)
        select.select([], [], [], 0.05)

collective()
"""


def test_where_a_stuck_command_stands_is_shown_when_its_test_is_ended(
    source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process that forks for commands waited for a stuck one for ever, so the tests behind it were ended, too."""

    def end(_: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_name in ("_heard", "_wait"):  # it waits for the command's end
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a test ends once, and the command asks again
            pytest.fail("Timeout")

    (tmp_path / "train.py").write_text(STUCK)
    before = signal.signal(signal.SIGUSR1, end)
    try:
        with pytest.raises(pytest.fail.Exception, match="Timeout"):
            source.run("train.py", str(os.getpid()), folder=tmp_path)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert re.findall(r'train.py", line \d+ in (\w+)', capsys.readouterr().err) == 2 * ["collective"]
    (tmp_path / "train.py").write_text("print('the next one')\n")
    assert source.run("train.py", folder=tmp_path).stdout == "the next one\n"

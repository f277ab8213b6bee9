"""Commands as they are typed, but for the seconds that imports take: forks of a process that has imported before.

A fork starts with what a fresh interpreter starts with: streams, folder, environment and arguments of its own, Python's
own signal handlers, a new ``__main__``. What is decided when torch is imported (threads, kernels, the simulated GPU)
was decided by the process that forks: a test about that starts an interpreter.
"""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import functools
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Pipe
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn, cast

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

from streamrace.device.scripts import fail
from streamrace.process.child import Child
from streamrace.process.forks import as_often_as_python, forking, relax_gc
from streamrace.process.service import Channel, Service

ROOT = Path(__file__).resolve().parents[1]
_MESSAGE = 1 << 20
_SHOW = signal.SIGUSR2  # makes a command and its ranks print where all of their threads stand


@dataclass(frozen=True)
class Command:
    """``arguments``: what stands behind ``python``, which is a script or ``-m MODULE``, and what that is given."""

    arguments: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    session: bool = False  # one of its own, as a job of a shell


class Started:
    """A command that runs. ``stdout`` can be read while it does; what else it wrote is known at its end."""

    def __init__(self, source: Source, command: Command, said: str) -> None:
        reader, writer = os.pipe() if command.session else (-1, _file("out"))
        self._errors = _file("err")
        given = _file("in")
        os.write(given, said.encode())
        os.lseek(given, 0, os.SEEK_SET)
        self._source, self._command = source, command
        self.returncode: int | None = None
        self._written: tuple[str, str] | None = None
        self.pid = source.fork(command, (given, writer, self._errors))
        os.close(given)
        if command.session:
            os.close(writer)
        self.stdout: IO[str] = os.fdopen(reader if command.session else writer, encoding="utf-8")

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def communicate(self) -> tuple[str, str]:
        """What it wrote that is not read yet, when it has ended; the same again the second time."""
        if self._written is None:
            self._written = self._read()
        return self._written

    def _read(self) -> tuple[str, str]:
        if self._command.session:
            output = self.stdout.read()
            self._wait(0)
        else:
            self._wait(0)
            self.stdout.seek(0)
            output = self.stdout.read()
        self.stdout.close()
        os.lseek(self._errors, 0, os.SEEK_SET)
        with os.fdopen(self._errors, encoding="utf-8") as errors:
            return output, errors.read()

    def completed(self) -> subprocess.CompletedProcess[str]:
        output, errors = self.communicate()
        assert self.returncode is not None
        return subprocess.CompletedProcess(["python", *self._command.arguments], self.returncode, output, errors)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                self.returncode = self._source.wait(self.pid, options)
            except (pytest.fail.Exception, KeyboardInterrupt):  # the test's time is over
                self._stop()
                raise
        return self.returncode

    def _stop(self) -> None:
        """End the command and its ranks, once they have shown where they stand. The source has not answered yet."""
        family = [self.pid, *_descendants(self.pid)]
        for number, patience_s in ((_SHOW, 0.5), (signal.SIGKILL, 0.0)):
            for pid in family:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
                select.select([], [], [], patience_s)  # one behind the other: they write into one file
        self.returncode = self._source.answer(self.pid)
        for told in self.communicate():
            sys.stderr.write(told)


class Source(ABC):
    """A process that forks for commands."""

    @abstractmethod
    def fork(self, command: Command, files: tuple[int, int, int]) -> int: ...

    @abstractmethod
    def wait(self, pid: int, options: int) -> int | None: ...

    @abstractmethod
    def answer(self, pid: int) -> int:
        """Return the status of a killed process for which a call of :meth:`wait` was interrupted."""

    def start(
        self,
        *arguments: str,
        folder: Path = ROOT,
        environment: Mapping[str, str] | None = None,
        said: str = "",
        session: bool = False,
    ) -> Started:
        """``python ARGUMENTS`` in ``folder``. Whoever starts a ``session`` reads its output while it is written.

        ``said``: all of its standard input.
        """
        variables = dict(os.environ if environment is None else environment)
        return Started(self, Command(arguments, str(folder), variables, session), said)

    def run(
        self, *arguments: str, folder: Path = ROOT, environment: Mapping[str, str] | None = None, said: str = ""
    ) -> subprocess.CompletedProcess[str]:
        return self.start(*arguments, folder=folder, environment=environment, said=said).completed()


class Here(Source):
    """Forks of the tests' own process, with all that it has imported by now, and with its kernels."""

    def fork(self, command: Command, files: tuple[int, int, int]) -> int:
        return _fork(command, files, ours=False)

    def wait(self, pid: int, options: int) -> int | None:
        return _wait(pid, options)

    def answer(self, pid: int) -> int:
        return cast(int, _wait(pid, 0))


class Warm(Source):
    """Forks of a process that did nothing but import ``modules``: with a simulated GPU, if it is ``simulated``.

    ``modules``: also functions of theirs that it calls, each as ``module:function``.
    ``of``: it is a fork of that one's process, which has imported much of it before, and shares its memory.
    """

    def __init__(
        self,
        modules: Sequence[str],
        *,
        simulated: bool = False,
        environment: Mapping[str, str],
        of: Warm | None = None,
    ) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = ("-m", "tests.warm", "simulated" if simulated else "plain", *modules)
        with other:
            if of is None:
                path = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
                child = subprocess.Popen(
                    [sys.executable, *words], cwd=ROOT, env={**environment, "PYTHONPATH": path}, stdin=other
                )
                self._ended: Callable[[], object] = child.wait
            else:
                pid = of.fork(Command(words, str(ROOT), dict(environment)), (other.fileno(), 1, 2))
                self._ended = functools.partial(of.wait, pid, 0)

    def fork(self, command: Command, files: tuple[int, int, int]) -> int:
        socket.send_fds(self._socket, [json.dumps({"command": asdict(command)}).encode()], files)
        return cast(int, self._heard())

    def wait(self, pid: int, options: int) -> int | None:
        self._socket.send(json.dumps({"wait": [pid, options]}).encode())
        return cast("int | None", self._heard())

    def answer(self, pid: int) -> int:
        return cast(int, self._heard())

    def close(self) -> None:
        self._socket.close()
        self._ended()

    def _heard(self) -> Any:
        told = self._socket.recv(_MESSAGE)
        if not told:
            raise RuntimeError("the warm process has ended; see above")
        return json.loads(told)


class Forked(Service):
    """A service in a fork of a command in a warm process: that has imported torch and the device, and used neither.

    So the program that a check runs again (:class:`streamrace.fuzz.live.runs.Runner`) need not import them again.
    """

    def __init__(self, name: str, *arguments: str, stdout: int, stderr: int, env: Mapping[str, str]) -> None:
        connection, other = Pipe()
        command = Command(("-m", name, str(other.fileno()), *arguments), os.getcwd(), dict(env))
        with other:
            self._child = Child(lambda _: _served(command, other.fileno(), (subprocess.DEVNULL, stdout, stderr)))
        self.pid = self._child.pid
        self.channel = Channel(connection, self.pid)

    def wait(self) -> int:
        status = self._child.wait()
        assert status is not None
        return status

    def close(self, patience_s: float = 0.0) -> None:
        self.channel.close()
        self._child.wait(patience_s)
        self._child.close()


def _served(command: Command, channel: int, files: Sequence[int]) -> NoReturn:
    """Keep of all files the channel alone, as a new interpreter would: the others would never be seen to end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    streams = [os.dup(nothing if file == subprocess.DEVNULL else file) for file in files]
    for file in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, channel, nothing, *streams}:
        with suppress(OSError):  # the folder's own
            os.dup2(nothing, file)  # not closed: what Python closes later must not be another file by then
    atexit._clear()
    sys.path[1:1] = filter(None, command.environment.get("PYTHONPATH", "").split(os.pathsep))
    _become(command, streams, ours=True)


@functools.cache
def with_simulated_gpu(*, dynamo: bool = True) -> Warm:
    """One for all tests of this process, and for what else there is warm with a simulated GPU: they are forks of it.

    ``dynamo``: of a process that has imported torch.compile, too, before a command says that inductor is to run.
    """
    modules = ["torch", "streamrace.repro.commands.group", "streamrace.repro.commands.check"]
    warm = Warm(
        [*modules, *["torch._dynamo"] * dynamo], simulated=True, environment={**shell(), "OMP_NUM_THREADS": "1"}
    )
    atexit.register(warm.close)
    return warm


def shell() -> dict[str, str]:
    """The environment, without DeepSpeed's word on which accelerator there is."""
    return {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}


def serve(simulated: bool, modules: Sequence[str]) -> NoReturn:
    """What the warm process does, to the end of the one that asks on its standard input."""
    asked = socket.socket(fileno=os.dup(0))
    if simulated:
        from streamrace.device.launch import start

        start()
    for name in modules:
        named = pkgutil.resolve_name(name)
        if ":" in name:
            named()
    relax_gc()  # or each fork counts, and looks for garbage in, all that was imported
    while True:
        wanted, files, *_ = socket.recv_fds(asked, _MESSAGE, 3)
        if not wanted:
            os._exit(0)  # nobody waits for what torch does at an interpreter's end
        said = json.loads(wanted)
        if "command" in said:
            asked.send(json.dumps(_fork(Command(**said["command"]), files, ours=True)).encode())
            for file in files:
                os.close(file)
        else:
            asked.send(json.dumps(_wait(*said["wait"])).encode())


def _file(name: str) -> int:
    """What ranks write to it at the same time stands in it one behind the other, as in a pipe."""
    made = os.memfd_create(name)
    fcntl.fcntl(made, fcntl.F_SETFL, os.O_APPEND)
    return made


def _wait(pid: int, options: int) -> int | None:
    done, status = os.waitpid(pid, options)
    return os.waitstatus_to_exitcode(status) if done else None


def _descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    with suppress(FileNotFoundError):
        own = [int(child) for child in children.read_text().split()]
        return [*own, *(later for child in own for later in _descendants(child))]
    return []


def _fork(command: Command, files: Sequence[int], *, ours: bool) -> int:
    with forking():
        child = os.fork()
    if child == 0:
        _become(command, files, ours=ours)
    return child


def _become(command: Command, files: Sequence[int], *, ours: bool) -> NoReturn:
    """In a fork: the command, and nothing that comes after it. ``ours``: the process has done nothing but import."""
    status = 1
    try:
        as_often_as_python()
        if not ours:
            atexit._clear()
            faulthandler.disable()  # pytest's
            # pytest's too, which rewrites a plugin's package: runpy cannot run what this hook finds.
            sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AssertionRewritingHook)]
            sys.excepthook = sys.__excepthook__  # torch.distributed puts its own before it, in each group's name
        if command.session:
            os.setsid()
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        faulthandler.register(_SHOW, file=2)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # though a shell's background jobs ignore it
        os.environ.clear()
        os.environ.update(command.environment)
        os.chdir(command.folder)
        vars(tempfile)["tempdir"] = None  # what TMPDIR says is asked for again
        _streams(files)
        if "streamrace.device.cuda" in sys.modules and ours:
            sys.modules["streamrace.device.cuda"].see(int(os.environ.get("WORLD_SIZE", "1")))
        if ours and [*command.arguments[:2]] == ["-m", "streamrace"] and "streamrace.device.launch" in sys.modules:
            from streamrace.fuzz.live import runs

            vars(runs)["Service"] = Forked
        status = _python(command, ours=ours)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def _streams(files: Sequence[int]) -> None:
    for target, source in enumerate(files):
        os.dup2(source, target)
        os.close(source)
    at_once = "PYTHONUNBUFFERED" in os.environ
    streams = [os.fdopen(target, "r" if target == 0 else "w", encoding="utf-8", closefd=False) for target in range(3)]
    sys.stdin, sys.stdout, sys.stderr = streams
    streams[1].reconfigure(write_through=at_once)
    streams[2].reconfigure(errors="backslashreplace", line_buffering=True)


def _python(command: Command, *, ours: bool) -> int:
    """As ``python ARGUMENTS`` does it; gives the exit status."""
    first, *rest = command.arguments
    module = rest.pop(0) if first == "-m" else ""
    if module.startswith("streamrace."):  # a service's, whatever the working folder holds (lifetime.module)
        place = str(ROOT)
    else:
        place = command.folder if module else str(Path(first).absolute().parent)
    if ours:
        sys.path[0] = place  # that of `python -c` until now
    else:
        sys.path.insert(0, place)
    sys.argv = [module or first, *rest]
    try:
        if module == __name__:
            serve(False, rest[1:])
        if module:
            sys.modules.pop(f"{module}.__main__", None)  # runpy would warn of it
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            _script(Path(first).absolute())
    except BaseException as error:
        return fail(error, ("tests.warm",))
    return 0


def _script(place: Path) -> None:
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = str(place)
    exec(compile(place.read_bytes(), place, "exec"), vars(main))


if __name__ == "__main__":
    from tests import warm  # whose frames are not a command's (fail)

    warm.serve(sys.argv[1] == "simulated", sys.argv[2:])

"""Runs the body of a test on the simulated GPU, each time in a fork of this process: nothing leaks between runs."""

from __future__ import annotations

import shutil
import signal
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from streamrace.device import collectives, costs, cuda, hardware, launch, work
from streamrace.device.hardware_costs import clocked
from streamrace.device.library import functions
from streamrace.device.ranks import RankFailed
from streamrace.device.ranks.processes import run as run_ranks
from streamrace.device.timing import Timing, timed
from streamrace.device.uninitialised import begin
from streamrace.fuzz import watched_values
from streamrace.fuzz.live.run_record import load
from streamrace.fuzz.live.runs import LiveOutcome, Poisoned
from streamrace.fuzz.testing import default
from streamrace.fuzz.testing.bodies import Body, Describe, Failure, Problem, line_of, outermost, packed, seed, unpacked
from streamrace.fuzz.testing.lines import differences
from streamrace.fuzz.testing.options import Options
from streamrace.fuzz.watched_values import Value, mostly_other, seeing, watch_result
from streamrace.process.child import Child, Send, ending, print_to
from streamrace.process.interrupts import held as interrupts_held
from streamrace.process.messages import decode, encode
from streamrace.trace.files import file_of
from streamrace.trace.records import TraceError

NO_FAILURE = ("Skipped", "XFailed")
inside = False  # whether this process is such a fork

_PATIENCE_S = 60.0  # timeout of torch.distributed
_AUTOGRAD = "Unable to handle autograd's threading in combination with fork"


class FirstFailed(NamedTuple):
    """The first of several ranks to fail, and how."""

    rank: int
    sentence: str


class BodyRan(NamedTuple):
    """A rank's report. ``failed``: kind, line, text and output; empty if the rank reached its end."""

    values: list[Any]
    failed: list[str]
    imported: list[str]


@dataclass(frozen=True)
class Done(LiveOutcome):
    """A run, and its result in the test. ``values``: by rank in the order of :func:`streamrace.watch`."""

    values: tuple[Value, ...]
    failure: Failure | None

    def differs(self, reference: LiveOutcome) -> str:
        assert isinstance(reference, Done)
        return next(iter(self.wrong(reference)), "")

    def ends(self, reference: LiveOutcome) -> str:
        """Compare the ends; half of a watched value may differ, as in any copy that may include padding."""
        assert isinstance(reference, Done)
        failed = next((outcome.failure for outcome in (reference, self) if outcome.failure), None)
        if (reference.failure is None) != (self.failure is None) and failed is not None:
            return f"what the test asserts: {failed.line}"
        pairs = zip(reference.values, self.values, strict=False)
        name = next((value.name for value, other in pairs if mostly_other(value.tensor, other.tensor)), None)
        return super().ends(reference) if name is None else f"the value {name}"

    def wrong(self, reference: Done) -> list[str]:
        """Return what the test asserts, watches or returns differently from ``reference``, a line each."""
        if self.status is None:
            return ["it does not end"]
        if self.failure is not None:
            return [] if self.failure.kind in NO_FAILURE else [self.failure.line]
        return differences(reference.values, self.values)


class Forks:
    """Runs ``body``. ``folder`` receives a run's files; ``tell`` converts an exception of the body to text."""

    patience_s = 0.0  # 0: no limit

    def __init__(self, body: Body, options: Options, folder: Path, tell: Describe) -> None:
        self._body = body
        self._ranks = ranks = options.ranks
        self._gpus = options.gpus
        self._seed = options.seed
        profile = hardware.load_profile(options.profile) if options.profile else None
        self._hardware = None if profile is None else hardware.HardwareTiming(profile, (0,) * ranks)
        self._folder = folder
        self._tell = tell
        functions().drain()  # a fork does not inherit the work that fixtures have begun
        if ranks > 1 and functions().used():
            raise Problem(
                "each rank has a GPU of its own, but the process with the GPU has used it before, in a fixture, when a "
                "module was imported or (with --stream-device) in a test without the mark: let the test itself make "
                "what lies on the GPU, or run it in a session of its own"
            )

    def run(self, timing: Timing, *, at_once: bool = False, unwritten: Poisoned | None = None) -> Done:
        """Run the body in ``timing``, and remove its traces. ``unwritten``: see :meth:`Runner.run`."""
        folder = self._folder / "run"
        try:
            return self.keep(timing, folder, at_once=at_once, unwritten=unwritten)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def keep(self, timing: Timing, folder: Path, *, at_once: bool = False, unwritten: Poisoned | None = None) -> Done:
        """Run the body, and keep its traces in ``folder``. Raises :class:`Problem` if no fork can run the test."""
        folder.mkdir(parents=True)
        with warnings.catch_warnings(), interrupts_held():  # pytest may turn warnings into errors
            warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
            child = Child(lambda send: self._fork(timing, folder, send, at_once=at_once, unwritten=unwritten))
        try:
            status = child.wait(self.patience_s or None)
            first, _ = child.receive((FirstFailed,))
        finally:
            child.close()  # its ranks end with it
        paths = {rank: folder / f"rank{rank}.report" for rank in range(self._ranks)}
        reports = {rank: decode(path.read_bytes(), (BodyRan,)) for rank, path in paths.items() if path.exists()}
        _import(reports)
        failure = None
        if status is None or status or len(reports) < self._ranks:
            failure = self._failure(folder, reports, first, status or 0)
        try:
            run = load(folder)
        except TraceError:  # the run was ended in the middle of a record
            run = {}
        values = tuple(value for rank, report in reports.items() for value in unpacked(rank, report.values))
        return Done(run, status, values, failure)

    def _failure(self, folder: Path, reports: dict[int, BodyRan], failed: list[FirstFailed], status: int) -> Failure:
        first = 0
        if failed:
            first, why = failed[0]
        elif status < 0:
            why = f"the test's process {ending(status)}"
        else:
            why = "the test's process ended without a report"
        own = folder / f"rank{first}.printed"
        printed = own.read_text(errors="replace") if own.exists() else ""
        kind, line, text, printed = (first in reports and reports[first].failed) or ("RankFailed", why, why, printed)
        if _AUTOGRAD in text:
            raise Problem(
                "the process with the GPU has run a backward pass before, in a fixture or (with --stream-device) in a "
                "test without the mark, and torch can run none in its forks then: run this test in a session of its "
                "own (-m stream_race)"
            )
        where = f"on rank {first}:\n" if self._ranks > 1 else f"{line}\n\n"
        return Failure(kind, line, where + text, printed)

    # -- in the fork ------------------------------------------------------------------------------------

    def _fork(self, timing: Timing, folder: Path, send: Send, *, at_once: bool, unwritten: Poisoned | None) -> int:
        """Run all ranks in the fork; return the exit status."""
        global inside
        inside = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent takes care of Ctrl-C
        print_to(folder / "printed")
        if unwritten is not None:
            begin(unwritten.poisoned, copies=unwritten.copies)
        if self._gpus > 1:
            functions().several(self._gpus)
            cuda.see(self._gpus)
        if self._ranks == 1:
            return self._rank(0, timing, folder, at_once)
        try:
            run_ranks(range(self._ranks), lambda rank: sys.exit(self._rank(rank, timing, folder, at_once)))
        except RankFailed as failed:
            send(FirstFailed(failed.rank, str(failed)))
            return 1
        return 0

    def _rank(self, rank: int, timing: Timing, folder: Path, at_once: bool) -> int:
        """Run one rank; return the exit status, and write its report to a file."""
        __tracebackhide__ = True
        printed = folder / f"rank{rank}.printed"
        print_to(printed)
        before = set(sys.modules)
        cuda.take_over()
        # Repairs torch's thread pool after the fork: autograd's threads would do so all at once, and some abort then
        # (caffe2::pthreadpool releases the pool before it has a new one).
        torch.set_num_threads(1)
        if at_once:
            functions().deferred(0)
        if self._hardware is not None:
            costs.use(clocked(self._hardware, rank))
        results: list[Any] = []
        failed: list[str] = []
        held: list[object] = []
        try:
            with timed(timing, rank=rank), seeing() as values, launch.traced(file_of(folder, rank), skipped=_SKIPPED):
                if self._ranks > 1:
                    self._join(rank, folder)
                self._execute(held)
                collectives.drain()  # an error in work that is done only now is also the body's
                results = packed([_plain(value) for value in values])
            if self._ranks > 1:
                self._leave(rank)
        except BaseException as error:  # pytest.fail() raises a BaseException
            sys.stdout.flush()
            failed = [type(error).__name__, line_of(error), self._tell(error), printed.read_text(errors="replace")]
        imported = [name for name in sys.modules if name.startswith("torch.") and name not in before]
        (folder / f"rank{rank}.report").write_bytes(encode(BodyRan(results, failed, imported)))
        return int(bool(failed))

    def _join(self, rank: int, folder: Path) -> None:
        torch.cuda.set_device(rank)
        self._store = store = dist.FileStore(str(folder / "store"), self._ranks)
        patience = timedelta(seconds=_PATIENCE_S)
        dist.init_process_group("nccl", store=store, rank=rank, world_size=self._ranks, timeout=patience)

    def _leave(self, rank: int) -> None:
        """Wait for all ranks: a rank that exits while another one still connects to it would make that one fail."""
        self._store.set(f"left {rank}", "")
        self._store.wait([f"left {rank}" for rank in range(self._ranks)])

    def _execute(self, held: list[object]) -> None:
        """Run the body; ``held`` keeps its objects, so that the memory of the test is not reused before its end."""
        __tracebackhide__ = True
        seed(self._seed)
        with default.Default("cuda"), outermost(self._body, held):
            held.append(self._body())
        watch_result(held[-1])


# Files whose frames are left out: a watched value is read where the test calls watch.
_SKIPPED = (watched_values.__file__, default.__file__)


def _import(reports: dict[int, BodyRan]) -> None:
    """Import what torch imported at first use in a fork, which may take seconds, so that later forks inherit it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in dict.fromkeys(name for report in reports.values() for name in report.imported):
            with suppress(Exception):  # the module may not be importable by its name
                import_module(name)


def _plain(value: Value) -> Value:
    """Copy a watched value to the host, bypassing the device, as all its work is done."""
    if not value.tensor.is_cuda:
        return value
    return value._replace(tensor=work.alias(value.tensor).clone())

"""Starts a program on the simulated GPU: ``streamrace device [--ranks N] [--trace FILE] script.py its arguments``.

``--dry --world 64 --per-node 8`` runs it as rank 0 of 64, on tensors without values (:mod:`streamrace.device.dry`).
``--timing TOKEN`` runs it in a given timing (:mod:`streamrace.device.timing`). The device is loaded before torch is
imported, then ``torch.cuda`` is replaced, then the script runs as ``__main__``. ``-m module`` runs a module.
``--trace`` writes a trace of the device's work (:mod:`streamrace.trace`). ``--ranks`` runs the script in N processes,
like ``torchrun --nproc-per-node N -m streamrace.device script.py``; ``--trace`` then names a folder. ``--record``
makes the traces replayable (:mod:`streamrace.device.recording`), also in a folder. ``--without
stream.wait_event@file.py:12`` leaves the waits of that line out (:mod:`streamrace.device.overrides`); it may be given
several times.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from streamrace.compiling import BuildError
from streamrace.device import seeds, smi
from streamrace.device.dry import World
from streamrace.device.hardware import ProfileError
from streamrace.device.packages import starting
from streamrace.device.ranks import RankFailed, spawned
from streamrace.device.scripts import Program, WrongUse, fail
from streamrace.device.timing import Timing, timed
from streamrace.device.tokens import TokenError
from streamrace.process.interrupts import held
from streamrace.trace.encoding import Packed
from streamrace.trace.files import TraceWriter, file_of
from streamrace.trace.parts import PartWriter
from streamrace.trace.records import TraceRecord

UNWRITTEN = "the trace cannot be written: "  # the beginning of the sentence with the reason
_USAGE = (
    "usage: streamrace device [--ranks N | --dry [--world N] [--per-node N] [--hardware PROFILE]] "
    "[--trace FILE [--record]] [--timing TOKEN] [--without PLACE]... (script.py | -m module) [arguments]"
)


def start(*, devices: int = 1, index: int = 0, deferred: bool = True) -> None:
    """Give this process a simulated GPU. torch must not be imported yet. Do nothing the second time.

    ``devices``: the value of ``torch.cuda.device_count()``; the process uses number ``index`` until it calls
    ``torch.cuda.set_device``. Without ``deferred`` each launch is waited for at once, as with CUDA_LAUNCH_BLOCKING=1.
    Raise RuntimeError or :class:`streamrace.compiling.BuildError`.
    """
    from streamrace.device import kept, library, overlay, substitute

    overlay.install()
    if library.active():
        return
    substitute.stand_in_front()
    kept.hold()
    f = library.load()
    f.devices(devices, index, 0)
    f.deferred(deferred)
    from streamrace.device import sanitizer

    switch_on = sanitizer.postpone()
    from streamrace.device import (
        adapters,
        c10d,
        costs,
        cuda,
        extensions,
        foreign,
        hidden,
        host,
        imports,
        one_gpu,
        processor,
        refusals,
        rnn,
        storage,
        tensor_types,
        versions,
        wider,
        work,
    )

    processor.settle()
    versions.install()
    cuda.install(count=devices)
    storage.install()
    spawned.install()
    tensor_types.install()
    one_gpu.install()
    costs.use(costs.Costs())
    work.install()
    hidden.install()
    wider.install()
    rnn.install()
    foreign.install()
    host.install()
    refusals.install()
    imports.install()
    extensions.install()
    c10d.install()
    adapters.install()
    atexit.register(f.python_ends)
    switch_on()


def run(
    arguments: Sequence[str],
    *,
    module: bool = False,
    ranks: int = 0,
    trace: Path | None = None,
    slow: Mapping[str, float] | None = None,
    timing: Timing | None = None,
    record: bool = False,
    dry: World | None = None,
    tell_waits: bool = False,
    keep: int = 0,
    seeded: Path | None = None,
) -> int:
    """Run a program on the simulated GPU to its end and return its exit status.

    ``arguments``: a script (or, with ``module``, a module's name) and its arguments. Exceptions of the program are
    printed as by the interpreter. ``ranks``: number of processes, forked here; 0: run in this process, which may be a
    launcher's rank. ``trace``: a folder for a trace of each rank. ``slow``: see
    :class:`streamrace.device.costs.Costs`. ``timing``: deviations from these costs. ``record``: the traces also
    contain the operations, so that they can be replayed. ``dry``: this process runs dry, as a rank of that world; this
    cannot be recorded. ``tell_waits``: the traces also contain the program's line of each wait. ``keep``: bytes of
    each trace that are kept; the rest goes into parts that a reader removes (:mod:`streamrace.trace.parts`); 0: the
    trace is one file. ``seeded``: random generators that the program does not seed are seeded, and this file lists
    them (:mod:`streamrace.device.seeds`).

    Raise :class:`streamrace.device.scripts.WrongUse` if there is no such program, :class:`BuildError` or RuntimeError
    if the device or the trace cannot be created, :class:`streamrace.device.ranks.RankFailed` for the first of
    ``ranks`` that fails.
    """
    program = Program(arguments[0], tuple(arguments[1:]), module=module)
    file = None if trace is None else partial(file_of, trace)
    return _run(
        program, ranks, file, slow or {}, timing or Timing(), record=record, dry=dry, tell_waits=tell_waits, keep=keep,
        seed=seeded is not None, seeded=seeded,
    )  # fmt: skip


def _run(
    program: Program,
    ranks: int,
    file: Callable[[int], Path] | None,
    slow: Mapping[str, float] = MappingProxyType({}),
    timing: Timing = Timing(),  # noqa: B008 - it is frozen
    *,
    record: bool = False,
    dry: World | None = None,
    tell_waits: bool = False,
    without: Sequence[str] = (),
    keep: int = 0,
    seed: bool = False,
    seeded: Path | None = None,
) -> int:
    _ = program.folder
    here = dry.local if dry else int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or "1")
    start(devices=here, deferred=os.environ.get("CUDA_LAUNCH_BLOCKING") != "1")
    if dry:
        from streamrace.device.dry import install

        install(dry)
    if seed:
        seeds.begin()
    program.find()
    if hidden := starting.hidden(sys.path):
        raise WrongUse(hidden)
    if tell_waits or without:
        from streamrace.device import overrides

        try:
            overrides.leave_out(without)
        except ValueError as problem:
            raise WrongUse(str(problem)) from None
        overrides.tell()  # records also the waits that were left out
    if slow:
        from streamrace.device import costs

        costs.use(replace(costs.current(), slow=slow))

    def rank(number: int) -> int:
        try:
            path = file and file(number)
            with (
                timed(timing, rank=number),
                traced(path, record=record, token=str(timing), keep=keep),
                seeds.of_rank(number, seeded),
            ):
                _held = program.run()  # kept alive: what the program holds at its end is examined
        except BaseException as error:
            if _unwritten:  # no fault of the program, although the error may have been raised in it
                raise RuntimeError(f"{UNWRITTEN}{_unwritten[0]}") from None
            status = fail(error, ("streamrace.device.launch", "streamrace.device.scripts"))
            starting.explain(error)
            return status
        return 0

    from streamrace.device.cuda import DeviceProperties as Gpu
    from streamrace.device.ranks.processes import run as run_ranks

    with smi.found(Gpu.name, f"{Gpu.major}.{Gpu.minor}", Gpu.total_memory >> 20, ranks or here):
        if not ranks:
            return rank(int(os.environ.get("RANK", "0")))
        run_ranks(ranks, lambda number: sys.exit(rank(number)))
    return 0


@contextmanager
def traced(
    trace: Path | None,
    *,
    skipped: tuple[str, ...] = (),
    record: bool = False,
    token: str = "t1",
    keep: int = 0,
) -> Iterator[None]:
    """Trace the device's work in the ``with`` block. Its work is finished at the end, unless the block fails.

    ``skipped``, ``record``: see :class:`streamrace.device.tracing.Tracer`. ``token``: the timing of the run, for a
    recording. ``keep``: see :func:`run`.
    """
    from streamrace.device import collectives, dry, probes, recording
    from streamrace.device.tracing import Tracer

    writer: TraceWriter | None = None
    tracer = None
    if trace is not None:
        rank, world = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
        info = {**recording.info(token, record=record), **dry.info()}
        with _writing():
            if keep:
                writer = PartWriter(trace, rank=rank, world=world, info=info, keep=keep)
            else:
                writer = TraceWriter(trace, rank=rank, world=world, info=info)
        tracer = Tracer(partial(_written, writer), skipped=skipped, record=record, packed=True)
        if not dry.active():
            probes.begin()
    done = False
    try:
        with spawned.watched(trace) if trace is not None else nullcontext():
            yield
            _join_threads()
        done = True
    except SystemExit as leaving:
        done = not leaving.code
        raise
    finally:
        with held():  # Ctrl-C may arrive twice: from the terminal, and forwarded by the parent process
            collectives.leave(done=done)
            if tracer is not None and writer is not None:
                tracer.flush(everything=True)
                if not dry.active():
                    _written(writer, probes.collected())
                tracer.close(done=done)
                with _writing():
                    writer.close()


_unwritten: list[OSError] = []  # errors that kept this process from writing its trace


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        _unwritten.append(problem)
        raise


def _written(writer: TraceWriter, records: Iterable[TraceRecord | Packed]) -> None:
    with _writing():
        writer.write(records)


def _join_threads() -> None:
    """Wait for the program's threads: the interpreter does so later, but the trace must contain their work."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def main(arguments: list[str], told: Callable[[str], None] | None = None, *, seed: bool = False) -> int:
    """Run the command line; return its exit status, 2 for a wrong call. ``told``: gets why a trace is incomplete.

    ``seed``: random generators that the program does not seed are seeded (:mod:`streamrace.device.seeds`).
    """
    given = {"--trace": "", "--ranks": "", "--timing": "t1", "--world": "", "--per-node": "", "--hardware": ""}
    needs = {"--trace": "file", "--timing": "token", "--hardware": "profile", "--without": "place"}
    flags = {"--dry": False, "--record": False}
    without: list[str] = []
    if arguments[:1] in (["--help"], ["-h"]):
        print(_USAGE)
        return 0
    while arguments and arguments[0] in (*given, *flags, "--without"):
        if arguments[0] in flags:
            flags[arguments[0]], arguments = True, arguments[1:]
            continue
        if len(arguments) < 2:
            return _wrong(f"{arguments[0]} needs a {needs.get(arguments[0], 'number')}")
        if arguments[0] == "--without":
            without.append(arguments[1])
        else:
            given[arguments[0]] = arguments[1]
        arguments = arguments[2:]
    trace, ranks = given["--trace"], given["--ranks"]
    dry, record = flags.values()
    if record and not trace:
        return _wrong("--record needs a --trace to be written into")
    for option in ("--ranks", "--world", "--per-node"):
        if given[option] and not (given[option].isdecimal() and int(given[option]) > 0):
            return _wrong(f"{option} needs a number, not '{given[option]}'")
    if not dry and (given["--world"] or given["--per-node"] or given["--hardware"]):
        return _wrong("--world, --per-node and --hardware are a dry run's: add --dry")
    if dry and ranks:
        return _wrong("--ranks starts ranks, and a dry run is one process: say --world")
    if dry and record:
        return _wrong("a dry run has no values, and a recording is made of them: leave --dry or --record out")
    try:
        timing = Timing.parse(given["--timing"])
        world = World(int(given["--world"] or "1"), int(given["--per-node"] or "0"), given["--hardware"])
        world.profile()
    except (TokenError, ValueError, ProfileError) as problem:
        return _wrong(str(problem))
    if not arguments or (arguments[0] == "-m" and len(arguments) < 2):
        return _wrong("name a script or a module to run")
    module = arguments[0] == "-m"
    name, *rest = arguments[1:] if module else arguments
    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1  # by torchrun, for example
    if ranks and launched:
        return _wrong("--ranks starts ranks, but this is one already (WORLD_SIZE is set)")
    if dry and launched:
        return _wrong("a dry run is one process, but this is one of several ranks (WORLD_SIZE is set)")
    several = bool(ranks) or launched or record  # a recording is a folder
    if trace and several:
        Path(trace).mkdir(parents=True, exist_ok=True)

    def file(rank: int) -> Path:
        return file_of(Path(trace), rank) if several else Path(trace)

    try:
        program = Program(name, tuple(rest), module=module)
        return _run(
            program,
            int(ranks or "0"),
            file if trace else None,
            timing=timing,
            record=record,
            dry=world if dry else None,
            without=without,
            seed=seed,
        )
    except WrongUse as problem:
        return _wrong(str(problem))
    except (BuildError, RuntimeError) as problem:
        print(f"streamrace: {problem}", file=sys.stderr)
        _tell(str(problem), told)
        return 2
    except RankFailed as failed:
        print(f"streamrace: {failed}; the others were ended", file=sys.stderr)
        _tell(failed.reason, told)
        return failed.status


def _tell(reason: str, told: Callable[[str], None] | None) -> None:
    _, unwritten, why = reason.partition(UNWRITTEN)
    if unwritten and told is not None:
        told(unwritten + why)


def _wrong(problem: str) -> int:
    print(f"streamrace: {problem}\n{_USAGE}", file=sys.stderr)
    return 2

"""Starts a program on the simulated GPU: ``streamrace device [--ranks N] [--trace FILE] script.py its arguments``.

The device is loaded before torch is imported, then ``torch.cuda`` is replaced, then the script runs as ``__main__``.
``streamrace device --help`` lists the options, which are those of :class:`LaunchOptions`.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from streamrace.compiling import BuildError
from streamrace.device import limits, opened_files, seeds, smi
from streamrace.device.hardware import ProfileError
from streamrace.device.options import EAGER, HELP, INDUCTOR, LaunchOptions, compile_option, dry_world, launched
from streamrace.device.packages import starting
from streamrace.device.ranks import RankFailed, spawn
from streamrace.device.scripts import Program, WrongUse, fail, lacks_ranks
from streamrace.device.timing import Timing, timed
from streamrace.device.tokens import TokenError
from streamrace.process.interrupts import held
from streamrace.trace import wording
from streamrace.trace.encoding import Packed
from streamrace.trace.files import TraceWriter
from streamrace.trace.parts import PartWriter
from streamrace.trace.records import TraceRecord

UNWRITTEN = "the trace cannot be written: "  # the beginning of the sentence with the reason


def start(*, devices: int = 1, index: int = 0, deferred: bool = True, several: int = 1) -> None:
    """Give this process a simulated GPU. torch must not be imported yet. Do nothing the second time.

    ``devices``: the value of ``torch.cuda.device_count()``; the process uses number ``index`` until it calls
    ``torch.cuda.set_device``, and at most ``several``. Without ``deferred`` each launch is waited for at once, as with
    CUDA_LAUNCH_BLOCKING=1. Raise RuntimeError or :class:`streamrace.compiling.BuildError`.
    """
    from streamrace.device import cache_entries, library, overlay, substitute

    overlay.install()
    if library.active():
        return
    substitute.stand_in_front()
    cache_entries.hold()
    f = library.load()
    f.devices(devices, index, 0)
    f.several(several)
    f.deferred(deferred)
    from streamrace.device import sanitizer

    switch_on = sanitizer.postpone()
    from streamrace.device import (
        adapters,
        c10d,
        comm,
        compiled,
        costs,
        cuda,
        dlpack,
        extensions,
        graphs,
        host,
        imports,
        processor,
        refusals,
        rnn,
        storage,
        tensor_types,
        undeclared_writes,
        versions,
        wider_types,
        work,
    )

    processor.settle()
    versions.install()
    cuda.install(count=devices)
    for part in (storage, spawn, tensor_types, comm):
        part.install()
    costs.use(costs.Costs())
    for part in (
        work,
        undeclared_writes,
        wider_types,
        rnn,
        dlpack,
        host,
        refusals,
        graphs,
        compiled,
        imports,
        extensions,
        c10d,
        adapters,
    ):
        part.install()
    atexit.register(f.python_ends)
    switch_on()


def run(options: LaunchOptions) -> int:
    """Run a program on the simulated GPU to its end and return its exit status.

    Exceptions of the program are printed as by the interpreter. Raise :class:`streamrace.device.scripts.WrongUse` if
    there is no such program, :class:`BuildError` or RuntimeError if the device or the trace cannot be created,
    :class:`streamrace.device.ranks.RankFailed` for the first of the ranks that fails.
    """
    program, dry = options.program, options.dry
    _ = program.folder
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or "1")
    devices = dry.local if dry else local * options.gpus
    start(devices=devices, deferred=os.environ.get("CUDA_LAUNCH_BLOCKING") != "1", several=options.gpus)
    if options.gpus > 1:
        from streamrace.device import cuda, library

        library.functions().several(options.gpus)  # the process may have had its device before
        cuda.see(devices)
    from streamrace.device.dry import install

    if dry and not options.ranks:
        install(dry)
    if options.seed:
        seeds.begin()
    from streamrace.device import compiled, inductor

    compiled.use(options.compile)
    if options.scale_limits:
        limits.scale()
    program.find()
    if hidden := starting.hidden(sys.path):
        raise WrongUse(hidden)
    if options.tell_waits or options.without:
        from streamrace.device import overrides

        try:
            overrides.leave_out(options.without)
        except ValueError as problem:
            raise WrongUse(str(problem)) from None
        overrides.tell()  # records also the waits that were left out
    if options.slow:
        from streamrace.device import costs

        costs.use(replace(costs.current(), slow=options.slow))
    from streamrace.device import first_pass

    timing = options.timing

    def rank(number: int) -> int:
        try:
            with (
                timed(timing, rank=number),
                traced(options.file(number), record=options.record, token=str(timing), keep=options.keep),
                seeds.of_rank(number, options.seeded),
            ):
                first_pass.watch()
                opened_files.watch(program.folder)
                _held = program.run()  # kept alive: what the program holds at its end is examined
        except BaseException as error:
            if _unwritten:  # no fault of the program, although the error may have been raised in it
                raise RuntimeError(f"{UNWRITTEN}{_unwritten[0]}") from None
            if lacks_ranks(error):
                raise WrongUse(f"{program.name} is a distributed program: run it with --ranks 2") from None
            status = fail(error, ("streamrace.device.launch", "streamrace.device.scripts"))
            starting.explain(error)
            return status
        finally:
            if dry and options.rehearsed and number == dry.rank:
                _note_steps(options.rehearsed)
        return 0

    from streamrace.device.cuda import DeviceProperties as Gpu
    from streamrace.device.ranks.processes import run as run_ranks

    with (
        smi.on_path(Gpu.name, f"{Gpu.major}.{Gpu.minor}", Gpu.total_memory >> 20, options.ranks or devices),
        inductor.code_folder() if options.compile == INDUCTOR else nullcontext(),
    ):
        if not options.ranks:
            return rank(int(os.environ.get("RANK", "0")))
        with TemporaryDirectory() as folder:
            together = dry and dry.every(options.ranks, Path(folder, "store"))

            def one(number: int) -> NoReturn:
                if dry and together:
                    install(replace(dry, rank=number), together=together)
                sys.exit(rank(number))

            run_ranks(together.ranks if together else range(options.ranks), one, options.output)
    return 0


def _note_steps(file: Path) -> None:
    from streamrace.device import memory
    from streamrace.device.dry import steps

    file.write_text(json.dumps({"step_ends": steps.ends(), "capacity": memory.total()}), encoding="utf-8")


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
    recording. ``keep``: see :class:`LaunchOptions`.
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
        with spawn.watched(trace) if trace is not None else nullcontext():
            yield
            _join_threads()
        done = True
    except SystemExit as leaving:
        done = not leaving.code
        raise
    finally:
        with held():  # Ctrl-C may arrive twice: from the terminal, and forwarded by the parent process
            try:
                collectives.leave(done=done)
            except BaseException:
                done = False  # its collectives never take place: the trace says so
                raise
            finally:
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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        word = message.rpartition(" ")[2] if message.startswith("unrecognized") else ""
        near = wording.near(word, self._option_string_actions)
        raise WrongUse(message.removeprefix("argument ").replace(": ", " ", 1) + near)


def _parser() -> _Parser:
    parser = _Parser(
        prog="streamrace device",
        usage="streamrace device [OPTIONS] (SCRIPT | -m MODULE) [ARGUMENTS]...",
        description="Run SCRIPT on the simulated GPU, without judging it.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-m", dest="module", action="store_true", help=HELP["module"])
    add("--dry", action="store_true", help=HELP["dry"])
    add("--scale-limits", action="store_true", help=HELP["scale_limits"])
    add("--compile", metavar="BACKEND", type=compile_option, default=EAGER, help=HELP["compile"])
    for name in ("ranks", "nodes", "gpus"):
        add(f"--{name}", metavar="N", type=_count, help=HELP[name])
    add("--hardware", metavar="PROFILE", default="", help=HELP["hardware"])
    add("--network", metavar="GBIT", type=float, help=HELP["network"])
    add("--trace", metavar="FILE", type=Path, help="Write the trace; with several ranks, or --record, a folder.")
    add("--record", action="store_true", help=HELP["record"])
    add("--timing", metavar="TOKEN", default="t1", help="Run in this timing, as for check.")
    add("--without", metavar="PLACE", action="append", default=[], help="Leave out the waits of a line: "
        "stream.wait_event@file.py:12. Can be repeated.")  # fmt: skip
    add("--world", "--per-node", dest="earlier", help=argparse.SUPPRESS)
    add("program", nargs=argparse.REMAINDER, metavar="...", help="The script or the module, and its arguments.")
    return parser


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"needs a number, not '{text}'")
    return int(text)


def _read(parser: _Parser, arguments: list[str], *, seed: bool) -> LaunchOptions:
    parsed = parser.parse_args(arguments)
    if parsed.earlier is not None:
        raise WrongUse(
            "--world and --per-node are gone: say --nodes and --gpus (of each node), as for streamrace check"
        )
    if parsed.record and not parsed.trace:
        raise WrongUse("--record needs a --trace to be written into")
    if not parsed.program:
        raise WrongUse("name a script or a module to run")
    name, *rest = parsed.program
    options = LaunchOptions(
        Program(name, tuple(rest), module=parsed.module),
        parsed.ranks or 0,
        dry_world(parsed.nodes, parsed.gpus, parsed.hardware, parsed.network, dry=parsed.dry),
        Timing.parse(parsed.timing),
        trace=parsed.trace,
        record=parsed.record,
        without=parsed.without,
        seed=seed,
        scale_limits=parsed.scale_limits,
        compile=parsed.compile,
        gpus=1 if parsed.dry else parsed.gpus or 1,
    )
    if parsed.trace and (options.ranks or options.record or launched()):
        parsed.trace.mkdir(parents=True, exist_ok=True)
    return options


def main(arguments: list[str], report: Callable[[str], None] | None = None, *, seed: bool = False) -> int:
    """Run the command line; return its exit status, 2 for a wrong call. ``report``: gets why a trace is incomplete.

    ``seed``: random generators that the program does not seed are seeded (:mod:`streamrace.device.seeds`).
    """
    parser = _parser()
    try:
        return run(_read(parser, arguments, seed=seed))
    except (WrongUse, TokenError, ProfileError) as problem:
        print(f"streamrace: {problem}\n{parser.format_usage()}", file=sys.stderr, end="")
        return 2
    except (BuildError, RuntimeError) as problem:
        print(f"streamrace: {problem}", file=sys.stderr)
        _tell(str(problem), report)
        return 2
    except RankFailed as failed:
        print(f"streamrace: {failed}; the others were ended", file=sys.stderr)
        _tell(failed.reason, report)
        return failed.status


def _tell(reason: str, report: Callable[[str], None] | None) -> None:
    _, unwritten, why = reason.partition(UNWRITTEN)
    if unwritten and report is not None:
        report(unwritten + why)

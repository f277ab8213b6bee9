"""Runs little programs (:mod:`tests.fuzz.oracle`) on simulated GPUs, one program after the other, recorded.

A process is made for each rank of two once, and one rank alone is this process: a fork for each program would take most
of the time. What one program did, the next must not see: all work has ended between them, and the memory of the device
is new each time.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from streamrace.device import collectives, costs, cuda, probes, recording, tracing
from streamrace.device.hardware import HardwareTiming
from streamrace.device.hardware_costs import clocked
from streamrace.device.tracing import Tracer
from streamrace.process.forks import forking
from streamrace.replay.record import plain_timing
from streamrace.replay.recording import Recording
from streamrace.trace.records import Alloc, Reuse, TraceRecord, begin
from tests.fuzz.oracle import BUFFERS, EVENTS, STREAMS, Answers, Program

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

GROUPS = ("world", "other")
Slow = dict[str, float]
Seen = list[tuple[float, ...]]


class Told(NamedTuple):
    """What the hosts learned, by rank: numbers they read, what queries answered, whose memory they got."""

    seen: list[Seen]
    answers: list[Answers]


class _Told(NamedTuple):
    """One rank's."""

    records: list[TraceRecord]
    seen: Seen
    queries: list[bool]


# -- one rank ----------------------------------------------------------------------------------------------


@cache
def _streams() -> dict[str, Any]:
    """The same ones for all programs: torch has a pool of 32."""
    return {"compute": torch.cuda.default_stream(), **{name: torch.cuda.Stream() for name in STREAMS[1:]}}


@cache
def _groups(world: int) -> dict[str, Any]:
    """One is torch's default group."""
    ranks = list(range(world))
    return {"world": dist.group.WORLD, **{name: dist.new_group(ranks) for name in GROUPS[1:world]}}


def _run(program: Program, slow: Slow, rank: int) -> _Told:
    """Run a program on the device of this process, which is in a process group already if there are others."""
    if program.world > 1:
        dist.barrier(device_ids=[rank])  # the ranks' clocks agree, and both are done with the program before
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    plain = plain_timing(program.world)
    costs.use(clocked(HardwareTiming(plain.profile, plain.nodes_of, slow=slow), rank))
    records: list[TraceRecord] = [begin(rank, program.world, recording.info("t1", record=True))]
    tracer = Tracer(records.extend, record=True)
    probes.begin()
    for name, stream in _streams().items():
        tracing.name_stream(stream.stream_id, name)
    names: dict[str, Any] = {
        "torch": torch,
        "dist": dist,
        "on": torch.cuda.stream,
        **_streams(),
        **(_groups(program.world) if program.meets else {}),
        **{name: torch.cuda.Event() for name in EVENTS},
        "seen": [],
        "answers": [],
        "works": [],
    }
    try:
        exec(compile(program.source(rank), f"rank{rank}.py", "exec"), names)
        for name in BUFFERS:
            if name in names:
                probes.probe("final", name, names[name], finally_=True)
        collectives.drain()
        tracer.flush(everything=True)
        records.extend(probes.collected(probes.READ))
    finally:
        tracer.close()
    return _Told(records, [tuple(one) if isinstance(one, list) else (one,) for one in names["seen"]], names["answers"])


def _answers(told: _Told) -> Answers:
    """What a rank's program was told of what it could not know."""
    blocks: dict[int, int] = {}  # of the trace: the oracle's
    formers: dict[int, int] = {}
    for one in told.records:
        if isinstance(one, Alloc):
            blocks[one.block] = len(blocks)
        elif isinstance(one, Reuse):
            block, former = blocks[one.block], blocks[one.former]
            assert one.start == one.lo == 0, "a buffer begins where a former one began"
            assert block not in formers
            formers[block] = former
    return Answers(tuple(told.queries), formers)


def _whole(told: list[_Told]) -> tuple[Recording, Told]:
    return (
        Recording.of({rank: one.records for rank, one in enumerate(told)}),
        Told([one.seen for one in told], [_answers(one) for one in told]),
    )


def run_alone(program: Program, slow: Slow) -> tuple[Recording, Told]:
    """One rank, in this process."""
    if program.meets and not dist.is_initialized():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    return _whole([_run(program, slow, 0)])


# -- two ranks ---------------------------------------------------------------------------------------------


class TwoRanks:
    """Two processes that run program after program, together. Made before this process uses its own device."""

    def __init__(self, folder: Path) -> None:
        self._pipes: list[Connection] = []
        self._processes = []
        context = multiprocessing.get_context("fork")
        for rank in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs, folder / "store"), daemon=True)
            with forking():
                process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, program: Program, slow: Slow) -> tuple[Recording, Told]:
        for pipe in self._pipes:
            pipe.send((program, slow))
        told = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(60):
                pytest.fail(f"rank {rank} does not answer")
            answer = pipe.recv()
            if isinstance(answer, str):
                pytest.fail(f"rank {rank}: {answer}")
            told.append(answer)
        return _whole(told)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()


def _serve(rank: int, pipe: Connection, path: Path) -> None:
    """A rank's process."""
    os.environ["RANK"] = str(rank)
    cuda.see(2)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", store=dist.FileStore(str(path), 2), rank=rank, world_size=2)
    while True:
        program, slow = pipe.recv()
        try:
            pipe.send(_run(program, slow, rank))
        except BaseException:
            pipe.send(traceback.format_exc())

"""What is sent from rank to rank takes as long in a replay as it took live: the trace says what shares the network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
import torch
import torch.distributed as dist

from streamrace.device.device import Device
from streamrace.device.hardware import HardwareTiming, load_profile
from streamrace.replay.graph import Graph
from streamrace.replay.record import record_ranks
from streamrace.replay.replayer import Replayer
from streamrace.trace.files import TraceReader, file_of
from streamrace.trace.records import Collective, Group, begin

PROFILE = replace(load_profile("dgx-a100-roce"), network=None)
NODES = (0, 0, 1, 1)
ELEMENTS = 1 << 16


def opposite(device: Device) -> None:
    """Each rank sends to the one of its number on the other node: in a group of the two, and in that of all ranks."""
    me, value = dist.get_rank(), torch.ones(ELEMENTS, device="cuda")
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    for group in (pairs[me % 2], dist.group.WORLD):
        got = torch.zeros(ELEMENTS, device="cuda")
        for work in (
            dist.isend(value, (me + 2) % 4, group=group),
            dist.irecv(got, (me + 2) % 4, group=group),
        ):
            assert work is not None
            work.wait()
        device.probe("loss", "", got.sum(), lambda value: None)


def test_a_replay_and_a_new_timing_know_how_many_share_the_network(tmp_path: Path) -> None:
    timing = HardwareTiming(replace(PROFILE, node_gbits_per_s=120.0), NODES)
    recording = record_ranks(opposite, tmp_path, timing)
    replayer = Replayer(recording)
    replayer.verify()
    in_pairs, in_all = [one for one in recording.records[0] if isinstance(one, Collective)][::2]
    nanoseconds = ELEMENTS * 4 * 8
    assert in_pairs.end - in_pairs.start == pytest.approx(15_000 + nanoseconds / 60, abs=1)
    assert in_all.end - in_all.start == pytest.approx(15_000 + nanoseconds / 100, abs=1)
    graph = replayer.graph
    anew = graph.times(recording.timing.on(replace(timing, profile=PROFILE.on_network(10.0))))
    took = [anew[graph.ends[0, one.op]] - anew[graph.begins[0, one.op]] for one in (in_pairs, in_all)]
    assert took == [pytest.approx(15_000 + nanoseconds / gbits, abs=1) for gbits in (5, 10)]
    assert Graph(recording).times() == graph.times()


def test_an_older_trace_says_nothing_of_where_it_was_sent_from(tmp_path: Path) -> None:
    first = msgpack.packb((0, *begin(0, 2)))
    file_of(tmp_path, 0).write_bytes(first + msgpack.packb((3, 7, (0, 1))))
    assert list(TraceReader(file_of(tmp_path, 0)).read())[1:] == [Group(7, (0, 1), ())]

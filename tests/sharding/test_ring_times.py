"""How long the rings take in virtual time: what follows on paper, and less for HO-Ring than for the others.

Of V bytes, n ranks in g groups of m have blocks of B = V/n; HO-Ring cuts each into c pieces of b = B/c. Sending x bytes
takes *hop(x)* to the next group, x over what a flow gets there while all ranks of a node send, and *turn(x)* within
the group, each with the link's latency. *sum(x)* is an addition on the device: it reads twice, writes once.

* Flat ring. In each of its n-1 turns a block passes the links between nodes, over which nobody else sends: *far(x)*.
  Slower links hold up all the others, as rings are in step. All-gather: (n-1) far(B). Reduce-scatter: each turn
  ends with a sum, (n-1) (far(B) + sum(B)).
* Hierarchical ring. All-gather: (g-1) hop(B) between groups, then the ng blocks of this rank's number in all groups
  turn one after the other: g (m-1) turn(B). Reduce-scatter: the same the other way round, each with its sum.
* HO-Ring. While a piece's m-1 turns take no longer than a hop, the link between groups never rests: from the call on it
  carries (g-1) c pieces. All-gather: they are followed by the last one's turns, (g-1) c hop(b) + (m-1) turn(b).
  Reduce-scatter: before the first is sent it is summed within the group, and the last one is added at the end; with
  c > 1 the sums between are hidden behind the other pieces' hops: (m-1) (turn(b) + sum(b)) + (g-1) c hop(b) + sum(b).
  With one piece each hop waits for the sum before it: (m-1) (turn(B) + sum(B)) + (g-1) (hop(B) + sum(B)).

What comes on top is that the host issues the first send and its receive: two launches, later ones are issued meanwhile.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks import rings as benched
from streamrace.detectors import RaceDetector
from streamrace.device.device import Device
from streamrace.device.hardware.kernels.gpu import Gpu
from streamrace.device.ranks.cluster import Rank
from streamrace.replay.graph import Graph
from streamrace.replay.recording import Recording
from streamrace.scenarios.sharding.lanes import LaneOrder, TracedStreams
from streamrace.scenarios.sharding.rings import CHUNK, HoRing
from streamrace.scenarios.sharding.topology import Topology
from streamrace.trace.records import End
from tests.sharding.ranks import LAUNCH, together

PROFILE = benched.PROFILE
assert PROFILE.fabric is not None
FABRIC = PROFILE.fabric
GPU = Gpu.of(PROFILE)


class Shape(NamedTuple):
    """Ranks, ranks of a group (a node), and float32 elements in all."""

    ranks: int
    group: int
    elements: int

    @property
    def block(self) -> int:
        return self.elements // self.ranks

    def pieces(self, chunk: int) -> int:
        count = -(-self.block // chunk)
        assert self.block % count == 0  # or they are not of one size
        return count


def far(elements: int) -> float:
    """Microseconds between nodes, for the only flow."""
    return elements * 4e-3 / FABRIC.card + PROFILE.inter_node_latency_us


def hop(elements: int, group: int) -> float:
    return elements * 4e-3 / min(FABRIC.card, FABRIC.node / group) + PROFILE.inter_node_latency_us


def turn(elements: int) -> float:
    return elements * 4e-3 / FABRIC.gpu + PROFILE.intra_node_latency_us


def added(elements: int) -> float:
    """A kernel's start, and then its bytes at the part of the memory's rate that a large one reaches."""
    return PROFILE.kernel_us + elements * 12e-3 / (PROFILE.memory_gbytes_per_s * GPU.memory)


def on_paper(of: Shape, chunk: int = CHUNK) -> dict[tuple[str, str], float]:
    """Microseconds, by ring and operation."""
    n, m, g, whole, c = of.ranks, of.group, of.ranks // of.group, of.block, of.pieces(chunk)
    piece = whole // c
    assert hop(piece, m) > (m - 1) * (turn(piece) + added(piece))
    scattered = (m - 1) * (turn(piece) + added(piece)) + (g - 1) * c * hop(piece, m)
    return {
        ("flat", "all-gather"): (n - 1) * far(whole),
        ("flat", "reduce-scatter"): (n - 1) * (far(whole) + added(whole)),
        ("hierarchical", "all-gather"): (g - 1) * hop(whole, m) + g * (m - 1) * turn(whole),
        ("hierarchical", "reduce-scatter"): (
            (g - 1) * (hop(whole, m) + added(whole)) + g * (m - 1) * (turn(whole) + added(whole))
        ),
        ("HO-Ring", "all-gather"): (g - 1) * c * hop(piece, m) + (m - 1) * turn(piece),
        ("HO-Ring", "reduce-scatter"): scattered + (added(piece) if c > 1 else (g - 1) * added(piece)),
    }


def assert_as_on_paper(times: benched.Times, of: Shape, chunk: int = CHUNK) -> None:
    paper, issued = on_paper(of, chunk), 2 * LAUNCH / 1000
    for key in paper.keys() & times.keys():
        assert times[key] * 1000 == pytest.approx(paper[key] + issued, abs=0.2), key  # each time is rounded to 1 ns


@pytest.mark.parametrize("ranks", benched.RANKS)
def test_a_gigabyte_takes_what_follows_on_paper(ranks: int, tmp_path: Path) -> None:
    times = benched.timed(ranks, tmp_path)
    assert_as_on_paper(times, Shape(ranks, 8, benched.ELEMENTS))
    recording = Recording.load(tmp_path / "trace", calls=False)
    detector = RaceDetector()
    detector.feed(0, recording.records[0])
    detector.finish()
    assert detector.races == []
    (ended,) = (one.time for one in recording.records[0] if isinstance(one, End))
    assert max(Graph(recording).times()) <= ended
    for operation in benched.OPERATIONS:
        flat, hierarchical, ho = (times[ring, operation] for ring in benched.RINGS)
        assert ho <= 0.75 * flat
        assert ho < hierarchical < flat


LIVE = benched.OPERATIONS[:2]


@pytest.mark.parametrize(
    ("rings", "of", "chunk"),
    [
        (list(benched.RINGS), Shape(6, 2, 6 << 20), CHUNK),
        (["HO-Ring"], Shape(6, 2, 12 << 20), 1 << 20),
    ],
    ids=["whole blocks", "two pieces"],
)
def test_live_ranks_take_as_long(rings: list[str], of: Shape, chunk: int, tmp_path: Path) -> None:
    """Six ranks that all exist: a flat ring's slower links hold up all of them, as a dry run has it of rank 0."""
    assert of.pieces(chunk) == (1 if chunk == CHUNK else 2)

    def program(me: Rank, device: Device | None) -> Any:
        assert device is not None
        topology, order = Topology.of(of.group), LaneOrder(TracedStreams(device))
        make = {**benched.RINGS, "HO-Ring": partial(HoRing, chunk=chunk)}
        return [
            (ring, operation, benched.virtual_ms(make[ring](topology, order), operation, of.elements, of.ranks))
            for ring in rings
            for operation in LIVE
        ]

    nodes_of = tuple(rank // of.group for rank in range(of.ranks))
    said = together(of.ranks, program, tmp_path, profile=PROFILE.name, nodes_of=nodes_of)
    times = {(ring, operation): took for ring, operation, took in said[0]}
    assert len(times) == len(rings) * len(LIVE)
    assert_as_on_paper(times, of, chunk)
    if chunk == CHUNK:
        assert times.items() <= benched.timed(of.ranks, tmp_path / "dry", of.elements, of.group).items()

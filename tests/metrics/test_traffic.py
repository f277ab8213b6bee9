"""What a GPU sends, within its node and between nodes."""

from __future__ import annotations

import json

import pytest

from streamrace.metrics import TrafficMetrics
from streamrace.trace.records import Phase, TraceError, TraceRecord
from tests.metrics.trace import begin, collective, groups

WORLD = 64
NODES_OF = [rank // 8 for rank in range(WORLD)]
ALL, NODE, ACROSS = range(3)
GROUPS = groups(tuple(range(WORLD)), tuple(range(8)), tuple(range(0, WORLD, 8)))
M = 64 * 8 * 1000


def metric(*records: TraceRecord) -> TrafficMetrics:
    found = TrafficMetrics(NODES_OF)
    found.feed([begin(world=WORLD), *GROUPS, *records])
    return found


@pytest.mark.parametrize(
    ("kernel", "sent"),
    [
        ("all_gather", M * 63 // 64),
        ("reduce_scatter", M * 63 // 64),
        ("all_reduce", 2 * M * 63 // 64),
        ("broadcast", M * 63 // 64),
        ("reduce", M * 63 // 64),
    ],
)
def test_what_each_kind_sends_over_all_nodes(kernel: str, sent: int) -> None:
    found = metric(collective(kernel, ALL, M)).result()
    assert (found.within, found.between, found.between_ring) == (0, sent, sent)
    assert found.crossing == sent // 8  # of eight links in a node, one leaves it


def test_a_group_in_one_node_sends_nothing_between_nodes() -> None:
    found = metric(collective("all_gather", NODE, M), collective("all_to_all", NODE, M)).result()
    assert (found.within, found.between) == (2 * M * 7 // 8, 0)


def test_an_all_to_all_sends_each_rank_its_part() -> None:
    found = metric(collective("all_to_all", ALL, M)).result()
    assert (found.within, found.between, found.between_ring) == (M * 7 // 64, M * 56 // 64, 0)
    found = metric(collective("all_to_all", ACROSS, M)).result()
    assert (found.within, found.between) == (0, M * 7 // 8)


@pytest.mark.parametrize("kernel", ["gather", "scatter"])
def test_to_or_from_a_root_each_part_goes_its_way(kernel: str) -> None:
    found = metric(collective(kernel, ALL, M)).result()
    assert (found.within, found.between, found.crossing) == (M * 7 // 64 // 64, M * 56 // 64 // 64, found.between)


def test_a_send_sends_and_a_receive_does_not() -> None:
    records = [*groups((0, 1), (8, 0), (0, 8)), collective("send", 0, M), collective("recv", 1, M)]
    found = metric(*records, collective("send", 2, 5)).result()
    assert (found.within, found.between) == (M, 5)


def test_zero_3_sends_three_times_the_model_and_zero_plus_plus_a_quarter_of_that() -> None:
    """ZeRO++: 3 M leave a node; with INT8 weights, secondary partitions and INT4 gradients M/2, nothing and M/4."""
    plain = metric(
        Phase(1, 1, "forward"),
        collective("all_gather", ALL, M),
        Phase(1, 1, "backward"),
        collective("all_gather", ALL, M),
        collective("reduce_scatter", ALL, M),
    ).result()
    assert plain.between == 8 * plain.crossing == 3 * M * 63 // 64
    quarter = metric(
        Phase(1, 1, "forward"),
        collective("all_gather", ALL, M // 2),
        Phase(1, 1, "backward"),
        collective("all_gather", NODE, M),
        collective("all_to_all", NODE, M // 4),
        collective("all_to_all", ACROSS, M // 4 // 8),
    ).result()
    assert 8 * quarter.only(phase="forward").crossing == M // 2 * 63 // 64
    assert quarter.only(kernel="all_gather", members=8).crossing == 0
    assert 8 * quarter.only(kernel="all_to_all").crossing == M // 4 * 7 // 8


def test_flows_are_told_apart_by_step_phase_kernel_and_group() -> None:
    found = metric(
        Phase(1, 1, "forward"),
        collective("all_gather", ALL, 64),
        collective("all_gather", ALL, 64),
        collective("all_gather", NODE, 64),
        Phase(1, 2, "forward"),
        collective("all_gather", ALL, 64),
        Phase(2, 1, "forward"),
        collective("all_gather", ALL, 64),
    ).result()
    assert [(flow.step, flow.members, flow.nodes, flow.count, flow.within, flow.between) for flow in found.flows] == [
        (1, 64, 8, 3, 0, 3 * 63),
        (1, 8, 1, 1, 56, 0),
        (2, 64, 8, 1, 0, 63),
    ]
    assert found.steps == (1, 2)
    assert found.only(step=2).between == 63
    assert json.loads(json.dumps(found.as_dict()))["steps"][0] == {
        "step": 1,
        "within": 56,
        "between": 189,
        "between_ring": 189,
        "crossing": 23,
    }


def test_collectives_of_unknown_bytes_are_counted_apart() -> None:
    found = metric(collective("all_gather", ALL, -1), collective("yodel", ALL, 64)).result()
    assert (found.flows, found.unknown) == ((), 2)


def test_a_group_that_no_record_names() -> None:
    with pytest.raises(TraceError, match="which ranks group 9 has"):
        metric(collective("all_gather", 9, 64))


def test_a_rank_whose_node_is_not_known() -> None:
    with pytest.raises(TraceError, match="rank 64: its node is not known"):
        metric(*groups((0, 64)))

"""The closed forms of sharding: as the paper prints them, by hand, and as the metric and the simulator count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrace.device.hardware import Clock, HardwareTiming, load_profile
from streamrace.device.hardware.network import NcclTimes, PlacedRanks
from streamrace.metrics import TrafficMetrics
from streamrace.scenarios.models import FULL_SIZE
from streamrace.scenarios.sharding.formulas import (
    Memory,
    PlannedExchange,
    Rates,
    Sent,
    Size,
    StateKind,
    StepPhase,
    communication,
    computation,
    exchanges,
    memory,
    moved,
    padded_memory,
    profile_rates,
    sent,
)
from streamrace.scenarios.sharding.layout import padded
from streamrace.scenarios.sharding.schemes import HPZ, Cluster, RingPlace, RingShape, Scheme, scheme, schemes
from streamrace.scenarios.sharding.strategy import Level, ShardingError, strategy
from streamrace.trace.records import TraceRecord
from tests.examples import examples
from tests.metrics.trace import begin, collective, groups

WITHIN, BETWEEN, ACROSS = RingPlace
GATHER, SCATTER, REDUCE = StateKind
ALL = pytest.mark.parametrize("one", schemes(), ids=str)

# -- as the paper prints it ---------------------------------------------------------------------------------------

PAPER = Cluster(ranks=32, group=8, gpus=8)


def bandwidths(within: float, between: float) -> Rates:
    """The paper's two."""
    return {WITHIN: within, BETWEEN: between, ACROSS: between}


B65, B7 = Size(65e9, 65e9), Size(7e9, 7e9)  # round: Llama's own 65.29 and 6.74 billion give other digits


@pytest.mark.parametrize(
    ("letters", "printed", "exact"),
    [
        ("IGG", "44.7", 44.6875),
        ("IIG", "56.9", 56.875),
        ("GGG", "32.5", 32.5),
        ("hpZ", "48.8", 48.75),
        ("III", "130", 130.0),
        ("NGG", "158", 158.4375),
    ],
)
def test_memory_of_65_billion_parameters_on_32_gpus(letters: str, printed: str, exact: float) -> None:
    found = memory(scheme(letters), B65, PAPER).total / 1e9
    assert found == exact
    assert f"{found:.{1 if '.' in printed else 0}f}" == printed
    own = FULL_SIZE["llama-65b"].parameters
    assert f"{memory(scheme(letters), Size(own, own), PAPER).total / 1e9:.1f}" != f"{exact:.1f}"


def test_what_fits_80_gb() -> None:
    """The paper names ZeRO-3, ZeRO++, IGG and IIG. GIG needs what IGG does, by the same formula, and talks twice."""
    fitting = {str(one) for one in schemes() if memory(one, B65, PAPER).total <= 80e9}
    assert fitting == {"GGG", "hpZ", "IGG", "IIG", "GIG"}
    assert memory(scheme("GIG"), B65, PAPER).total == memory(scheme("IGG"), B65, PAPER).total


@pytest.mark.parametrize(("letters", "printed"), [("GGG", "40.7"), ("IGG", "14.7"), ("hpZ", "15.8")])
def test_communication_of_7_billion_parameters_in_10_micro_batches(letters: str, printed: str) -> None:
    found = exchanges(scheme(letters), B7, PAPER, accumulation=10)
    assert f"{communication(found, PAPER, bandwidths(within=2000, between=80)):.1f}" == printed


# -- memory, by hand ----------------------------------------------------------------------------------------------

SMALL = Cluster(ranks=12, group=4, gpus=4)
SIZE = Size(480, 240)  # bf16: 960 bytes of parameters, 480 of gradients, 2880 of optimizer state


def test_memory_of_each_kind_by_its_letter() -> None:
    found = {str(one): memory(one, SIZE, SMALL) for one in schemes()}
    assert found["NNN"] == Memory(960, 0, 480, 2880)
    assert found["III"] == Memory(240, 0, 120, 720)
    assert found["GGG"] == Memory(80, 0, 40, 240)
    assert found["NIG"] == Memory(960, 0, 120, 240)
    assert found["IGG"] == Memory(240, 0, 40, 240)
    assert found["GNG"] == Memory(80, 0, 480, 240)
    assert found["GNG"].total == 800


def test_hpz_is_zero_3_and_a_copy_within_the_group() -> None:
    assert memory(HPZ, SIZE, SMALL) == memory(scheme("GGG"), SIZE, SMALL)._replace(copy=240)


def test_fp32_doubles_all_but_the_state() -> None:
    assert memory(HPZ, SIZE, SMALL, precision="fp32") == Memory(160, 480, 80, 240)


@pytest.mark.parametrize(("numel", "ranks", "found"), [(0, 4, 0), (1, 4, 4), (4, 4, 4), (5, 4, 8), (7, 1, 7)])
def test_padding_to_the_next_multiple(numel: int, ranks: int, found: int) -> None:
    assert padded(numel, ranks) == found


def test_padded_units_to_the_byte() -> None:
    cluster = Cluster(ranks=4, group=2, gpus=2)  # units of 10 and 7 take 12 and 8
    assert padded_memory(scheme("IGG"), [10, 7], cluster) == Memory(20, 0, 10, 60)
    assert padded_memory(HPZ, [10, 7], cluster, trained=[7]) == Memory(10, 20, 4, 24)
    assert padded_memory(scheme("NNN"), [10, 7], cluster, trained=[], precision="fp32") == Memory(80, 0, 0, 0)


# -- what is exchanged, by hand -----------------------------------------------------------------------------------


def plain(found: tuple[PlannedExchange, ...], phase: StepPhase) -> list[tuple[RingPlace, StateKind, float, int]]:
    return [(one.where, one.kind, one.nbytes, one.times) for one in found if one.phase is phase]


@pytest.mark.parametrize(
    ("letters", "parameters", "gradients", "to_state", "from_state"),
    [
        ("NNN", [], [], [(ACROSS, REDUCE, 480, 1)], []),
        ("NNI", [], [], [(WITHIN, SCATTER, 480, 1), (BETWEEN, REDUCE, 120, 1)], [(WITHIN, GATHER, 480, 1)]),
        ("NII", [], [(WITHIN, SCATTER, 480, 3)], [(BETWEEN, REDUCE, 120, 1)], [(WITHIN, GATHER, 480, 1)]),
        ("NNG", [], [], [(ACROSS, SCATTER, 480, 1)], [(ACROSS, GATHER, 480, 1)]),
        ("NIG", [], [(WITHIN, SCATTER, 480, 3)], [(BETWEEN, SCATTER, 120, 1)], [(ACROSS, GATHER, 480, 1)]),
        ("NGG", [], [(ACROSS, SCATTER, 480, 3)], [], [(ACROSS, GATHER, 480, 1)]),
        (
            "IIG",
            [(WITHIN, GATHER, 960, 6)],
            [(WITHIN, SCATTER, 480, 3)],
            [(BETWEEN, SCATTER, 120, 1)],
            [(BETWEEN, GATHER, 120, 1)],
        ),
        ("III", [(WITHIN, GATHER, 960, 6)], [(WITHIN, SCATTER, 480, 3)], [(BETWEEN, REDUCE, 120, 1)], []),
        ("GNG", [(ACROSS, GATHER, 960, 6)], [], [(ACROSS, SCATTER, 480, 1)], []),
        ("GGG", [(ACROSS, GATHER, 960, 6)], [(ACROSS, SCATTER, 480, 3)], [], []),
        ("hpZ", [(ACROSS, GATHER, 960, 1), (WITHIN, GATHER, 960, 5)], [(ACROSS, SCATTER, 480, 3)], [], []),
    ],
)
def test_the_collectives_of_a_step_of_three_micro_batches(
    letters: str, parameters: object, gradients: object, to_state: object, from_state: object
) -> None:
    found = exchanges(scheme(letters), SIZE, SMALL, accumulation=3)
    assert [plain(found, phase) for phase in StepPhase] == [parameters, gradients, to_state, from_state]


# By letters: what a micro-batch and the boundary take, in G, I and X.
_PARAMETERS = {"N": "", "I": "II", "G": "GG"}
_GRADIENTS = {"N": "", "I": "I", "G": "G"}
_TO_STATE = {"NN": "GG", "NI": "IXX", "NG": "G", "II": "XX", "IG": "X", "GG": ""}
_FROM_STATE = {"II": "", "NN": "", "GG": "", "IN": "I", "GN": "G", "GI": "X"}  # state, parameters


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("accumulation", [1, 4])
@ALL
def test_time_is_what_the_paper_adds_up(one: Scheme, accumulation: int, precision: str) -> None:
    n, m, s = 12, 4, accumulation
    bits, whole, mine = (16 if precision == "bf16" else 32), 4800e9, 2400e9  # such that all times are whole seconds
    b, b_within = 80e9, 1600e9

    def time(terms: str, volume: float) -> float:
        each = {
            "G": (n - 1) / n * volume * bits / b,
            "I": (m - 1) / m * volume * bits / b_within,
            "X": (n // m - 1) / (n // m) * volume / m * bits / b,
        }
        return sum(each[term] for term in terms)

    p, g, o = (level.name for level in (one.strategy.parameters, one.strategy.gradients, one.strategy.state))
    wanted = s * (time(_PARAMETERS[p], whole) + time(_GRADIENTS[g], mine))
    if one.copy:
        wanted = time("G", whole) + (2 * s - 1) * time("I", whole) + s * time("G", mine)
    wanted += time(_TO_STATE[g + o] + _FROM_STATE[o + p], mine)
    found = exchanges(one, Size(whole, mine), SMALL, accumulation=s, precision=precision)
    assert communication(found, SMALL, bandwidths(within=1600, between=80)) == wanted


def test_a_trained_parameter_takes_six_flops_a_token_and_a_frozen_one_four() -> None:
    assert computation(Size(100, 100), tokens=10, flops=60) == 100
    assert computation(Size(100, 0), tokens=10, flops=40) == 100
    assert computation(Size(160, 10), tokens=1, flops=1) == 4 * 160 + 2 * 10


# -- bytes sent ---------------------------------------------------------------------------------------------------


def test_rings_by_hand() -> None:
    """12 ranks on 3 nodes of 4: of a ring across all 3 of 12 links leave a node."""
    gather = PlannedExchange(StepPhase.PARAMETERS, ACROSS, GATHER, 1200, 2)
    assert moved(gather, SMALL) == 2 * 1100
    assert sent([gather], SMALL) == Sent(0, 2200, 550)
    assert sent([gather], SMALL).of_node(4) == Sent(0, 8800, 2200)
    within = PlannedExchange(StepPhase.GRADIENTS, WITHIN, SCATTER, 1200, 1)
    between = PlannedExchange(StepPhase.TO_STATE, BETWEEN, REDUCE, 300, 1)
    assert sent([within, between], SMALL) == Sent(900, 400, 400)


def test_zero_3_crosses_nodes_three_times_a_micro_batch_and_hpz_twice_and_then_once() -> None:
    """ZeRO++'s 3 s M and (s + 1) M, for a node's GPUs together, up to the ring's (n-1)/n."""
    size, s = Size(3200, 3200), 4
    volumes = {
        letters: sent(exchanges(scheme(letters), size, PAPER, accumulation=s), PAPER).of_node(8).crossing
        for letters in ("GGG", "hpZ")
    }
    once = 6400 * 31 / 32
    assert volumes == {"GGG": 3 * s * once, "hpZ": (s + 1) * once}


LAYOUTS = [
    Cluster(ranks=32, group=8, gpus=8),
    Cluster(ranks=32, group=4, gpus=8),
    Cluster(ranks=32, group=16, gpus=8),
    Cluster(ranks=32, group=1, gpus=8),
    Cluster(ranks=32, group=32, gpus=8),
    Cluster(ranks=8, group=4, gpus=8),
]
LAYOUT = pytest.mark.parametrize(
    "cluster", LAYOUTS, ids=lambda one: f"{one.ranks} by {one.group} on nodes of {one.gpus}"
)


def members(cluster: Cluster) -> Mapping[RingPlace, tuple[int, ...]]:
    """The ranks with which rank 0 talks."""
    return {
        WITHIN: tuple(range(cluster.group)),
        BETWEEN: tuple(range(0, cluster.ranks, cluster.group)),
        ACROSS: tuple(range(cluster.ranks)),
    }


@LAYOUT
@ALL
def test_the_account_of_a_trace_counts_the_same(one: Scheme, cluster: Cluster) -> None:
    found = exchanges(one, Size(32 * 32 * 100, 32 * 32 * 50), cluster, accumulation=2)
    records: list[TraceRecord] = [begin(world=cluster.ranks), *groups(*members(cluster).values())]
    for exchange in found:
        records += [
            collective(exchange.kind, list(RingPlace).index(exchange.where), int(exchange.nbytes))
        ] * exchange.times
    metric = TrafficMetrics([rank // cluster.gpus for rank in range(cluster.ranks)])
    metric.feed(records)
    counted = metric.result()
    assert sent(found, cluster) == Sent(counted.within, counted.between, counted.crossing)


@LAYOUT
@pytest.mark.parametrize("name", ["dgx-a100-roce", "a100-100gbps", "v100"])
def test_the_simulator_takes_as_long_but_for_latency(name: str, cluster: Cluster) -> None:
    profile = replace(load_profile(name), intra_node_latency_us=0.0, inter_node_latency_us=0.0, network=None)
    clock = Clock(HardwareTiming(profile, tuple(rank // cluster.gpus for rank in range(cluster.ranks))), 0)
    rates = profile_rates(cluster, profile)
    for where, ranks in members(cluster).items():
        for kind in StateKind:
            exchange = PlannedExchange(StepPhase.TO_STATE, where, kind, 32 * 10**9, 1)
            if len(ranks) == 1:
                assert communication([exchange], cluster, rates) == 0
                continue
            duration = clock.collective(f"nccl::{kind}", 32 * 10**9, ranks, "link", 0, 0)
            assert round(communication([exchange], cluster, rates) * 1e9) == duration


@LAYOUT
@pytest.mark.parametrize("name", ["dgx-a100-roce", "a100-100gbps", "v100"])
def test_on_a_network_as_well(name: str, cluster: Cluster) -> None:
    """What is left of a collective without its latency; an all-reduce may go by trees, which are faster."""
    profile = load_profile(name)
    nodes_of = tuple(rank // cluster.gpus for rank in range(cluster.ranks))
    assert profile.fabric is not None
    nccl, clock = NcclTimes(PlacedRanks(profile.fabric, nodes_of)), Clock(HardwareTiming(profile, nodes_of), 0)
    rates = profile_rates(cluster, profile)
    for where, ranks in members(cluster).items():
        for kind in StateKind if len(ranks) > 1 else ():
            exchange = PlannedExchange(StepPhase.TO_STATE, where, kind, 32 * 10**9, 1)
            way = nccl.chosen(kind, 32e9, ranks)
            duration = clock.collective(f"nccl::{kind}", 32 * 10**9, ranks, "link", 0, 0)
            ring = communication([exchange], cluster, rates) * 1e9
            if way.algorithm == "ring":
                assert ring == pytest.approx(duration - way.latency_ns * way.plateau, abs=1)
            else:
                assert kind is StateKind.ALL_REDUCE
                assert duration < ring * 1.001


def test_gpus_of_a_node_share_its_network_between_groups_and_a_ring_over_all_has_it_alone() -> None:
    dgx = replace(load_profile("dgx-a100-roce"), network=None)
    assert profile_rates(PAPER, dgx) == {WITHIN: 2400, BETWEEN: 448 / 8, ACROSS: 100}
    assert PAPER.ring(BETWEEN) == RingShape(ranks=4, nodes=4, flows=8)
    halves, pairs = replace(PAPER, group=4), replace(PAPER, group=16)
    assert profile_rates(halves, dgx) == {WITHIN: 2400, BETWEEN: 100, ACROSS: 100}  # 4 flows: no more than one gets
    assert profile_rates(pairs, dgx) == {WITHIN: 100, BETWEEN: 448 / 8, ACROSS: 100}
    assert profile_rates(PAPER, replace(load_profile("a100-100gbps"), network=None))[BETWEEN] == 100 / 8
    assert set(profile_rates(Cluster(8, 4, 8), dgx).values()) == {2400}


def test_on_a_network_a_ring_over_whole_nodes_has_all_their_cards() -> None:
    """Eight rings, one a card: together they have what the node has, where one over a GPU of each has an eighth."""
    rates = profile_rates(PAPER, load_profile("dgx-a100-roce"))
    assert rates == {WITHIN: pytest.approx(2400 * 0.8), BETWEEN: pytest.approx(448 / 8), ACROSS: pytest.approx(448)}
    one_card = profile_rates(PAPER, load_profile("dgx-a100-roce").on_network(100.0))
    assert one_card[ACROSS] == pytest.approx(8 * one_card[BETWEEN]) == pytest.approx(96)


# -- what always holds --------------------------------------------------------------------------------------------


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    small, factor, more = (draw(st.integers(1, 6)) for _ in range(3))
    group, gpus = draw(st.permutations([small, small * factor]))
    return Cluster(ranks=small * factor * more, group=group, gpus=gpus)


sizes = st.builds(lambda mine, frozen: Size(mine + frozen, mine), st.integers(0, 10**12), st.integers(0, 10**12))
any_scheme = st.sampled_from(schemes())
any_precision = st.sampled_from(["bf16", "fp32"])
many = examples(300)


@many
@given(any_scheme, any_scheme, sizes, clusters(), any_precision)
def test_finer_never_needs_more(one: Scheme, other: Scheme, size: Size, cluster: Cluster, precision: str) -> None:
    pairs = zip(levels(one), levels(other), strict=True)
    found, more = (memory(each, size, cluster, precision=precision) for each in (one, other))
    if one.copy <= other.copy and all(finer >= coarser for finer, coarser in pairs):
        assert found.total <= more.total
        assert all(mine <= theirs for mine, theirs in zip(found, more, strict=True))


def levels(one: Scheme) -> tuple[Level, Level, Level]:
    return one.strategy.parameters, one.strategy.gradients, one.strategy.state


@many
@given(any_scheme, any_scheme, sizes, clusters())
def test_each_letter_speaks_for_itself(one: Scheme, other: Scheme, size: Size, cluster: Cluster) -> None:
    """A kind's memory depends on its own letter; what is exchanged in a phase, on the letters that it joins."""
    mine, theirs = memory(one, size, cluster), memory(other, size, cluster)
    (p, g, o), (p2, g2, o2) = levels(one), levels(other)
    assert p is not p2 or mine.parameters == theirs.parameters
    assert g is not g2 or mine.gradients == theirs.gradients
    assert o is not o2 or mine.state == theirs.state
    said = {
        StepPhase.PARAMETERS: ((p, one.copy), (p2, other.copy)),
        StepPhase.GRADIENTS: (g, g2),
        StepPhase.TO_STATE: ((g, o), (g2, o2)),
        StepPhase.FROM_STATE: ((o, p), (o2, p2)),
    }
    found = exchanges(one, size, cluster, accumulation=3), exchanges(other, size, cluster, accumulation=3)
    for phase, (here, there) in said.items():
        if here == there:
            assert plain(found[0], phase) == plain(found[1], phase)


@many
@given(any_scheme, st.lists(st.integers(0, 10**6), max_size=5), clusters(), any_precision)
def test_padded_bytes_are_shared_out_without_rest(
    one: Scheme, units: list[int], cluster: Cluster, precision: str
) -> None:
    found = padded_memory(one, units, cluster, precision=precision)
    whole = sum(padded(unit, cluster.ranks) for unit in units)
    assert found == memory(one, Size(whole, whole), cluster, precision=precision)
    assert all(type(nbytes) is int for nbytes in found)
    assert sum(units) <= whole <= sum(units) + len(units) * (cluster.ranks - 1)


@many
@given(any_scheme, sizes, clusters(), st.integers(1, 20))
def test_what_leaves_a_node_is_part_of_what_goes_between_nodes(
    one: Scheme, size: Size, cluster: Cluster, accumulation: int
) -> None:
    found = sent(exchanges(one, size, cluster, accumulation=accumulation), cluster)
    assert 0 <= found.crossing <= found.between
    if cluster.ranks == cluster.gpus:
        assert found.between == 0


@many
@given(any_scheme, st.integers(0, 10**9), st.integers(1, 12), st.integers(1, 8))
def test_one_group_makes_i_what_g_is_and_groups_of_one_what_n_is(
    one: Scheme, numel: int, ranks: int, accumulation: int
) -> None:
    def costs(letters: Scheme, cluster: Cluster) -> tuple[float, float]:
        size = Size(numel * ranks, numel * ranks)  # no rest, so no rounding
        found = exchanges(letters, size, cluster, accumulation=accumulation)
        return memory(letters, size, cluster).total, sum(moved(exchange, cluster) for exchange in found)

    letters = str(one.strategy)
    if not one.copy:
        whole = Cluster(ranks, group=ranks, gpus=ranks)
        assert costs(one, whole) == costs(scheme(letters.replace("I", "G")), whole)
        alone = Cluster(ranks, group=1, gpus=ranks)
        assert costs(one, alone) == costs(scheme(letters.replace("I", "N")), alone)


# -- what is not legal --------------------------------------------------------------------------------------------


def test_only_zero_3_can_keep_hpzs_copy() -> None:
    with pytest.raises(ShardingError, match="its strategy is GGG, not IIG"):
        Scheme(strategy("IIG"), copy=True)
    assert scheme("hpz") == HPZ and str(HPZ) == "hpZ"
    assert len(schemes()) == 15 == len(set(schemes()))


@pytest.mark.parametrize(
    ("ranks", "group", "gpus", "said"),
    [
        (32, 6, 8, "groups of 6 do not divide 32 ranks"),
        (32, 8, 5, "nodes of 5 GPUs do not make 32 ranks"),
        (12, 4, 6, "groups of 4 would end in the middle of nodes of 6 GPUs"),
        (4, 0, 4, "groups of 0 do not divide 4 ranks"),
    ],
)
def test_groups_and_nodes_must_come_out_even(ranks: int, group: int, gpus: int, said: str) -> None:
    with pytest.raises(ShardingError, match=said):
        Cluster(ranks, group, gpus)

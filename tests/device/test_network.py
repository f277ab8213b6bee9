"""What NCCL's collectives take on a described network: closed forms, and what holds of every network."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrace.device.hardware import Clock, HardwareTiming, Profile, ProfileError, load_profile, profile_names
from streamrace.device.hardware.facts import fact
from streamrace.device.hardware.network import NcclTimes, Network, PlacedRanks
from streamrace.device.hardware.network.flows import fair
from tests.examples import examples

A100 = load_profile("a100-100gbps")
HDR = replace(A100, inter_node_gbits_per_s=200.0, network=Network(nics=8, cpu="amd"))  # a DGX A100's eight cards
CARD = 200 / 8 * fact("network.wire.infiniband")  # GB/s
NVLINK = 2400 / 8 * 0.8
GB = 10**9


def on(profile: Profile, nodes: int, per_node: int = 8) -> Clock:
    """Rank 0's clock."""
    return Clock(HardwareTiming(profile, tuple(rank // per_node for rank in range(nodes * per_node))), 0)


def took(clock: Clock, kind: str, nbytes: int, members: tuple[int, ...] = (), origin: tuple[int, ...] = ()) -> int:
    """Nanoseconds."""
    of = members or tuple(range(len(clock.timing.nodes_of)))
    return clock.collective(f"nccl::{kind}", nbytes, of, "nccl", 1, 1, origin=origin)


def late(base: str, *hops: tuple[int, str]) -> float:
    """Nanoseconds of latency with Simple, of so many hops of kinds (``nvlink.ring``)."""
    simple = 2
    hop = sum(count * fact(f"network.nccl.hop.{what}")[simple] for count, what in hops)
    return 1000 * float(fact(f"network.nccl.base_latency.{base}")[simple] + hop)


# -- closed forms -------------------------------------------------------------------------------------------------


def test_one_link_carries_a_message_at_its_rate() -> None:
    clock = on(HDR, 2, 1)
    assert took(clock, "send", GB, (0, 1)) == took(clock, "recv", GB, (0, 1)) == round(15_000 + GB / CARD)
    assert took(on(HDR, 1, 2), "send", GB, (0, 1)) == round(3000 + GB / NVLINK)


def test_a_ring_in_a_node_passes_all_blocks_but_one_over_every_link() -> None:
    clock = on(HDR, 1)
    assert took(clock, "all_gather", 8 * GB) == round(7 * GB / NVLINK + late("ring", (7, "nvlink.ring")))
    assert took(clock, "all_reduce", 8 * GB) == round(14 * GB / NVLINK + late("ring", (14, "nvlink.ring")))
    assert took(clock, "broadcast", 8 * GB) == round(8 * GB / NVLINK + late("ring", (1, "nvlink.ring")))


def test_rings_between_nodes_have_a_card_each() -> None:
    """15 blocks of 16 GB over eight cards; that the processor posts a ring's step takes 6 us, longer than a hop."""
    posted = 14 * 3 * fact("network.nccl.net_overhead.amd") * 1000
    expected = 15 * GB / (8 * CARD) + late("ring", (1, "net.ring")) + posted
    assert took(on(HDR, 2), "all_gather", 16 * GB) == round(expected)
    slower = replace(HDR, network=Network(nics=1, cpu="amd"))
    assert took(on(slower, 2), "all_gather", 16 * GB) == round(15 * GB / CARD + late("ring", (1, "net.ring")) + posted)


def test_a_tree_between_two_nodes_goes_up_on_the_way_that_the_other_comes_down() -> None:
    """So each card carries all bytes once, where a ring of 16 carries 15/8 of them."""
    slow = replace(A100, network=Network(nics=1, cpu="amd"))
    card = 100 / 8 * fact("network.wire.infiniband") * fact("network.nccl.tree_part")
    hops = late("tree", (2 * 7, "nvlink.tree"), (2, "net.tree"))
    assert took(on(slow, 2), "all_reduce", GB) == round(GB / card + hops)
    four = late("tree", (2 * 7, "nvlink.tree"), (4, "net.tree"))
    assert took(on(slow, 4), "all_reduce", 1 << 20) < (1 << 20) / card * 2 * 2 + four


def test_small_messages_go_by_trees_with_flags_and_large_ones_by_rings() -> None:
    profile, members = HDR, tuple(range(128))
    assert profile.fabric is not None
    nccl = NcclTimes(PlacedRanks(profile.fabric, tuple(rank // 8 for rank in members)))
    chosen = [nccl.chosen("all_reduce", 1 << power, members) for power in (10, 20, 26, 34)]
    assert [one.protocol for one in chosen] == ["LL", "LL128", "LL128", "Simple"]
    assert [one.algorithm for one in chosen] == ["tree", "tree", "tree", "ring"]
    assert {nccl.chosen("all_gather", 1 << power, members).algorithm for power in (10, 20, 26, 34)} == {"ring"}


# -- who else is there --------------------------------------------------------------------------------------------


def test_groups_of_the_same_kind_share_the_cards_of_a_node() -> None:
    """Eight rings over a GPU of each node: each has a card of its own, an eighth of one card, half of one of four."""
    for cards, part in ((8, 1.0), (4, 0.5), (1, 1 / 8)):
        clock = on(replace(HDR, network=Network(nics=cards)), 2)
        hop = late("ring", (1, "net.tree"))
        assert took(clock, "all_gather", GB, (0, 8)) == round(GB / 2 / (CARD * part) + hop), cards
        assert took(clock, "send", GB, (0, 8), (0, 8)) == round(15_000 + GB / (CARD * part)), cards
    one_card = on(replace(HDR, network=Network(nics=1)), 2)
    assert took(one_card, "send", GB, (7, 8), tuple(range(16))) == round(15_000 + GB / CARD)


def test_a_host_bridge_is_shared_by_all_who_pass_it() -> None:
    """A ring of four over PCIe crosses the bridge four times."""
    wide = replace(A100, intra_node_gbits_per_s=126.0, network=Network(within="pcie"))
    narrow = replace(wide, network=Network(within="pcie", bridge_gbits_per_s=126.0))
    times = [took(on(one, 1, 4), "all_gather", 4 * GB) - late("ring", (3, "pcie.ring")) for one in (wide, narrow)]
    assert times[1] == pytest.approx(4 * times[0], abs=1)
    assert times[0] == pytest.approx(3 * GB / 12.0, abs=1)


def test_leaves_that_take_in_more_than_they_pass_on_hold_up_who_crosses_them() -> None:
    flat, leaves = (replace(HDR, network=Network(nics=8, nodes_per_leaf=per, oversubscription=8)) for per in (0, 2))
    within, across = (0, 8), (0, 16)
    assert took(on(flat, 4), "all_gather", GB, within) == took(on(leaves, 4), "all_gather", GB, within)
    longer = took(on(leaves, 4), "all_gather", GB, across) - took(on(flat, 4), "all_gather", GB, across)
    assert longer == pytest.approx(GB / 2 / CARD * 7, abs=1)  # 16 rings over two cards' worth of uplink
    full = replace(HDR, network=Network(nics=8, nodes_per_leaf=2))
    assert took(on(full, 4), "all_gather", GB, across) == took(on(flat, 4), "all_gather", GB, across)


def test_all_to_all_fills_the_cards() -> None:
    """Half of what 16 ranks give each other leaves the node, over a card each."""
    latency = late("ring", (1, "net.ring"))
    assert took(on(HDR, 2), "all_to_all", GB) == round(GB / 2 / CARD + latency)
    assert took(on(HDR, 1), "all_to_all", GB) == round(GB * 7 / 8 / NVLINK + late("ring", (1, "nvlink.ring")))


def test_flows_share_what_is_full_and_take_what_others_leave() -> None:
    """Three links of 10, 6 and 3: two share the second, and the one that the third holds up leaves the rest."""
    a, b, c = ("a",), ("b",), ("c",)
    flows = [{a: 1.0}, {a: 1.0, b: 1.0}, {b: 1.0, c: 1.0}]
    assert fair(flows, {a: 10.0, b: 6.0, c: 2.0}) == [6.0, 4.0, 2.0]
    assert fair([{a: 2.0}, {}], {a: 10.0}) == [5.0, math.inf]


# -- what holds of every network ----------------------------------------------------------------------------------


@st.composite
def machines(draw: st.DrawFn) -> tuple[Profile, tuple[int, ...], tuple[int, ...], str]:
    """A machine, its ranks' nodes, a group of it with as many ranks on each node, and a collective."""
    nodes, per_node = draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 4, 8]))
    count = draw(st.sampled_from([one for one in (1, 2, 4, 8) if one <= per_node]))
    ours = draw(st.sampled_from([range(count), range(0, per_node, per_node // count)]))
    network = Network(
        generation=draw(st.sampled_from(["volta", "ampere", "hopper"])),
        within=draw(st.sampled_from(["nvlink", "pcie"])),
        nics=draw(st.sampled_from([1, 2, 4, 8])),
        wire=draw(st.sampled_from(["infiniband", "roce", "tcp"])),
        cpu=draw(st.sampled_from(["intel", "amd"])),
        added_latency_us=draw(st.sampled_from([0.0, 10.0])),
        bridge_gbits_per_s=draw(st.sampled_from([0.0, 300.0])),
        rails=draw(st.booleans()),
        nodes_per_leaf=draw(st.sampled_from([0, 1, 2])),
        oversubscription=draw(st.sampled_from([1.0, 4.0])),
    )
    profile = replace(
        A100,
        network=network,
        inter_node_gbits_per_s=draw(st.floats(1, 400)),
        node_gbits_per_s=draw(st.sampled_from([None, 300.0])),
        intra_node_gbits_per_s=draw(st.floats(50, 3600)),
    )
    members = tuple(node * per_node + local for node in range(nodes) for local in ours)
    kind = draw(st.sampled_from(["all_gather", "all_reduce", "reduce_scatter", "broadcast", "all_to_all", "gather"]))
    return profile, tuple(rank // per_node for rank in range(nodes * per_node)), members, kind


@given(machines(), st.integers(1, 1 << 34), st.floats(1.01, 8), st.sampled_from(["cards", "node", "gpu", "all"]))
@examples(60)
def test_more_bandwidth_is_never_slower_nor_less_latency_nor_fewer_bytes(
    machine: tuple[Profile, tuple[int, ...], tuple[int, ...], str], nbytes: int, factor: float, what: str
) -> None:
    profile, nodes_of, members, kind = machine
    assert profile.network is not None

    def ns(one: Profile, size: int = nbytes) -> int:
        rank = Clock(HardwareTiming(one, nodes_of), members[-1])
        return rank.collective(f"nccl::{kind}", size, members, "nccl", 3, 4)

    now = ns(profile)
    assert {Clock(HardwareTiming(profile, nodes_of), rank).collective(f"nccl::{kind}", nbytes, members, "", 3, 4)
            for rank in members} == {now}  # fmt: skip
    wider = {
        "cards": {"inter_node_gbits_per_s": profile.inter_node_gbits_per_s * factor},
        "node": {"node_gbits_per_s": profile.node_gbits_per_s and profile.node_gbits_per_s * factor},
        "gpu": {"intra_node_gbits_per_s": profile.intra_node_gbits_per_s * factor},
    }
    changed = {key: value for name, one in wider.items() if what in (name, "all") for key, value in one.items()}
    assert ns(replace(profile, **changed)) <= now + 1
    assert ns(profile, round(nbytes * factor) + 1) >= now
    later = replace(profile.network, added_latency_us=profile.network.added_latency_us + factor)
    assert ns(replace(profile, network=later)) >= now


# -- what is read -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", profile_names())
def test_a_recording_keeps_the_network(name: str) -> None:
    timing = HardwareTiming(load_profile(name), (0, 0, 1, 1))
    assert timing.profile.network is not None
    assert HardwareTiming.from_dict(timing.as_dict()) == timing


def test_a_recording_from_before_means_the_machine_that_it_meant() -> None:
    """It knows of no network: its collectives are one ring over the slowest link, as they were when it was made."""
    timing = HardwareTiming(load_profile("a100-100gbps"), (0, 0, 1, 1))
    before = timing.as_dict()
    del before["profile"]["network"]
    again = HardwareTiming.from_dict(before)
    assert asdict(again.profile) == {**asdict(timing.profile), "network": None}
    assert Clock(again, 0).collective("nccl::all_gather", GB, (0, 1, 2, 3), "nccl", 1, 1) == 60_000_000 + 15_000 + 6000


@pytest.mark.parametrize(
    ("network", "says"),
    [
        ('cards = 8', "unknown entries: cards"),
        ('within = "token ring"', "network.within must be nvlink or pcie, not 'token ring'"),
        ('nics = 0', "network.nics must be a whole number of 1 or more"),
        ('nics = true', "network.nics must be a whole number"),
        ('rails = 1', "network.rails must be true or false"),
        ('oversubscription = 0.5', "must be 1 or more"),
        ('added_latency_us = -1.0', "must be a number of 0 or more"),
    ],
)  # fmt: skip
def test_a_table_that_describes_no_network(network: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    text = Path("streamrace/device/hardware/profiles/h100.toml").read_text(encoding="utf-8")
    file.write_text(text[: text.index("[network]")] + f"[network]\n{network}\n", encoding="utf-8")
    with pytest.raises(ProfileError, match=says):
        load_profile(str(file))

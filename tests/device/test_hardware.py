"""Hardware profiles, and what a timing makes of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamrace.device.hardware import Clock, HardwareTiming, Profile, ProfileError, Scale, load_profile, profile_names

pytestmark = pytest.mark.host
GOOD = Path(load_profile.__code__.co_filename).with_name("profiles") / "h100.toml"


def own(folder: Path, change: tuple[str, str]) -> str:
    path = folder / "own.toml"
    path.write_text(GOOD.read_text().replace(*change))
    return str(path)


def clock(rank: int = 0, world: int = 1, **timing: Any) -> Clock:
    return Clock(HardwareTiming(load_profile("a100-100gbps"), (0,) * world, **timing), rank)


@pytest.mark.parametrize("name", profile_names())
def test_each_profile_loads(name: str) -> None:
    assert load_profile(name).name == name


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    assert load_profile(own(tmp_path, ("launch_us = 5.0", "launch_us = 7"))).launch_us == 7


def test_an_unknown_profile() -> None:
    with pytest.raises(ProfileError, match=r"no hardware profile 'b200': choose one of .*h100.* or name a .toml file"):
        load_profile("b200")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("launch_us = 5.0\n", ""), "lacks launch_us"),
        (("launch_us", "lunch_us = 1\nlaunch_us"), "has unknown entries: lunch_us"),
        (("launch_us = 5.0", "launch_us = -5"), "launch_us must be a number above 0, not -5"),
        (("launch_us = 5.0", "launch_us = 0"), "must be a number above 0"),
        (("launch_us = 5.0", "launch_us = nan"), "must be a number above 0"),
        (("launch_us = 5.0", "launch_us = inf"), "must be a number above 0"),
        (("launch_us = 5.0", "launch_us = true"), "must be a number above 0"),
        (("launch_us = 5.0", 'launch_us = "5"'), "must be a number above 0"),
        (("launch_us = 5.0", "launch_us ="), "cannot be read"),
        (('description = "', 'description = 5 # "'), "description must be text"),
    ],
)
def test_a_bad_profile_is_told_in_one_sentence(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    with pytest.raises(ProfileError) as error:
        load_profile(own(tmp_path, change))
    assert says in str(error.value)
    assert "own.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_profile_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    for name in ("folder.toml", "missing.toml"):
        with pytest.raises(ProfileError, match=name):
            load_profile(str(tmp_path / name))


def test_a_kernel_takes_the_longer_of_arithmetic_and_traffic() -> None:
    one = clock()
    assert one.kernel("k", 0, 0) == 2000
    assert one.kernel("k", 156_000_000_000, 0) == 1_000_000  # 156 TFLOPS: half of the peak
    assert one.kernel("k", 0, 2_039_000_000) == 1_000_000


def test_a_small_model_may_stand_for_a_large_one() -> None:
    assert clock(scale=Scale(flops=10.0)).kernel("k", 156_000_000_000, 0) == 10_000_000
    assert clock(scale=Scale(parameter_bytes=10.0)).kernel("k", 0, 2_039_000_000) == 10_000_000


@pytest.mark.parametrize(
    ("pattern", "kernel", "factor"),
    [
        ("stream:compute", "aten::add", 3),
        ("stream:comp*", "aten::add", 3),
        ("stream:other", "aten::add", 1),
        ("kernel:aten::copy_", "aten::copy_", 3),
        ("kernel:aten::copy_", "aten::copy", 1),
        ("rank:0", "aten::add", 3),
        ("rank:1", "aten::add", 1),
        ("host", "aten::add", 1),
    ],
)
def test_what_is_slow(pattern: str, kernel: str, factor: int) -> None:
    assert clock(world=2, slow={pattern: 3.0}).stretched(1000, kernel, "compute") == 1000 * factor


def test_slow_factors_multiply() -> None:
    slow = {"rank:0": 2.0, "stream:compute": 3.0, "kernel:aten::add": 5.0}
    assert clock(slow=slow).stretched(1000, "aten::add", "compute") == 30_000


def test_a_slow_host() -> None:
    launches = [made.of_host["launch_ns"] for made in (clock(slow={"host": 3.0}), clock(world=2, slow={"host:0": 3.0}))]
    assert launches == [15_000, 15_000]
    assert clock(1, 2, slow={"host:0": 3.0}).of_host["launch_ns"] == 5000


def test_jitter_is_drawn_from_the_seed() -> None:
    def durations(seed: int) -> list[int]:
        one = clock(jitter=0.5, seed=seed)
        return [one.stretched(1000, "k", "compute") for _ in range(20)]

    assert durations(1) == durations(1) != durations(2)
    assert all(1000 <= duration <= 1500 for duration in durations(1))
    assert len(set(durations(1))) > 10


def test_a_lognormal_jitter_has_a_tail_where_a_uniform_one_ends() -> None:
    """By exp(jitter |z|): half of all are above exp(0.67 jitter), one in a hundred above exp(2.6 jitter)."""
    one = clock(jitter=0.5, seed=1, jitter_law="lognormal")
    drawn = sorted(one.stretched(1000, "k", "compute") for _ in range(2000))
    assert drawn[0] >= 1000
    assert drawn[1000] == pytest.approx(1000 * math.exp(0.5 * 0.6745), rel=0.05)
    assert drawn[1980] == pytest.approx(1000 * math.exp(0.5 * 2.576), rel=0.1)
    uniform = clock(jitter=0.5, seed=1)
    assert max(uniform.stretched(1000, "k", "compute") for _ in range(2000)) <= 1500 < drawn[-1]


def test_stragglers_are_slow_for_good_and_who_they_are_is_drawn_from_the_seed() -> None:
    def ranks(seed: int) -> list[int]:
        return [clock(rank, 16, straggling=0.2, seed=seed).stretched(1000, "k", "compute") for rank in range(16)]

    assert ranks(1) == ranks(1) != ranks(2)
    assert len(set(ranks(1))) > 10
    assert min(ranks(1)) >= 1000
    assert clock(3, 16, straggling=0.2, seed=1, slow={"rank:3": 2.0}).factor("k", "compute") == 2 * (
        clock(3, 16, straggling=0.2, seed=1).factor("k", "compute")
    )
    timing = HardwareTiming(load_profile("h100"), (0, 1), straggling=0.2, jitter=0.1, jitter_law="lognormal")
    assert HardwareTiming.from_dict(timing.as_dict()) == timing
    before = timing.as_dict()
    del before["straggling"], before["jitter_law"]
    assert HardwareTiming.from_dict(before) == HardwareTiming(timing.profile, (0, 1), jitter=0.1)
    for wrong in ({"jitter_law": "normal"}, {"straggling": 2.0}):
        with pytest.raises(ValueError, match="not"):
            replace(timing, **wrong)


def test_all_ranks_agree_on_how_long_a_collective_takes() -> None:
    timing = HardwareTiming(
        load_profile("h100"), (0, 0, 1, 1), slow={"link:nccl*": 2.0, "rank:1": 9.0}, jitter=0.5, seed=4
    )
    for number in range(5):
        clocks = [Clock(timing, rank) for rank in range(4)]
        took = {one.collective("nccl::all_gather", 1 << 20, (0, 1, 2, 3), "nccl", 7, number) for one in clocks}
        assert len(took) == 1


def test_collectives_between_nodes_take_longer_and_all_reduce_goes_round_twice() -> None:
    one = Clock(HardwareTiming(plain("h100"), (0, 0, 1)), 0)
    within = one.collective("nccl::all_gather", 1 << 30, (0, 1), "nccl", 1, 1)
    between = one.collective("nccl::all_gather", 1 << 30, (1, 2), "nccl", 1, 1)
    assert between > 5 * within
    assert one.collective("nccl::all_reduce", 1 << 30, (0, 1), "nccl", 1, 1) == pytest.approx(2 * within, abs=1)
    assert one.collective("nccl::all_gather", 1 << 30, (0,), "nccl", 1, 1) == 2000


def plain(name: str) -> Profile:
    """A machine without a description of its network: collectives are one ring over its slowest link."""
    return replace(load_profile(name), network=None)


def sends(profile: Profile, per_node: int) -> Clock:
    """The clock of rank 0 on two nodes of ``per_node`` ranks."""
    return Clock(HardwareTiming(profile, (0,) * per_node + (1,) * per_node), 0)


def sent(one: Clock, pair: tuple[int, int], origin: tuple[int, ...], nbytes: int = 1_000_000_000) -> float:
    """Milliseconds of a send and, as they must agree, of its receive."""
    took = {one.collective(f"nccl::{kernel}", nbytes, pair, "nccl", 1, 1, origin=origin) for kernel in ("send", "recv")}
    assert len(took) == 1
    return took.pop() / 1e6


def test_all_that_is_sent_moves() -> None:
    one = sends(plain("a100-100gbps"), 1)
    assert sent(one, (0, 1), (0, 1)) == pytest.approx(80 + 0.015)
    within = sends(plain("a100-100gbps"), 2)
    assert sent(within, (0, 1), (0, 1)) == pytest.approx(8000 / 2400 + 0.003)


def test_the_ranks_of_the_group_that_sends_say_how_many_share_the_card() -> None:
    one = sends(plain("a100-100gbps"), 8)
    everybody = tuple(range(16))
    assert sent(one, (7, 8), everybody) == pytest.approx(80 + 0.015)  # a ring over all passes the card once
    assert sent(one, (0, 8), (0, 8)) == pytest.approx(8 * 80 + 0.015)  # the other seven send as well
    assert sent(one, (0, 9), (0, 1, 8, 9)) == pytest.approx(4 * 80 + 0.015)
    assert sent(one, (0, 1), (0, 8)) == sent(one, (0, 1), everybody)  # within a node nothing is shared


def test_a_node_may_have_more_than_one_flow_fills() -> None:
    """448 Gbit/s of a node, of which one flow gets 100: eight at once have 56 each, four are not held up."""
    profile = plain("dgx-a100-roce")
    one = sends(profile, 8)
    assert sent(one, (0, 8), (0, 8)) == pytest.approx(8000 / 56 + 0.015)
    assert sent(one, (7, 8), tuple(range(16))) == pytest.approx(80 + 0.015)
    assert sent(sends(profile, 4), (0, 4), (0, 4)) == pytest.approx(80 + 0.015)
    for members, gbits in ((tuple(range(16)), 100), ((0, 8), 56)):
        moved = (len(members) - 1) / len(members) * 8000 / gbits
        took = one.collective("nccl::all_gather", 1_000_000_000, members, "nccl", 1, 1) / 1e6
        assert took == pytest.approx(moved, abs=0.1)


def test_where_nothing_is_said_a_node_has_one_card() -> None:
    profile = plain("a100-100gbps")
    same = replace(profile, node_gbits_per_s=profile.inter_node_gbits_per_s)
    assert profile.node_gbits_per_s is None
    for members in ((0, 8), (0, 1, 8, 9), tuple(range(16))):
        took = {sends(one, 8).collective("nccl::all_gather", 1 << 30, members, "nccl", 1, 1) for one in (profile, same)}
        assert len(took) == 1

"""A checkpoint is of the model, not of who trained it: any strategy, group size and number of ranks goes on from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from streamrace.detectors import RaceDetector
from streamrace.device.device import Device
from streamrace.device.ranks.cluster import Rank
from streamrace.scenarios.sharding import checkpoint
from streamrace.scenarios.sharding.checkpoint import load, save
from streamrace.scenarios.sharding.checkpoint_index import read
from streamrace.scenarios.sharding.engine import ShardedEngine
from streamrace.scenarios.sharding.strategy import legal, strategy
from streamrace.scenarios.sharding.topology import Topology
from streamrace.trace.files import TraceReader, file_of
from tests.sharding.interrupted import MICRO_BATCHES, alone, begun, bits, go_on, model
from tests.sharding.ranks import together
from tests.sharding.training import adamw, engine, forked, net, values

STRATEGIES = [str(one) for one in legal()]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
FROZEN = ("embedding", "blocks.0.up")


class Saved:
    """Checkpoints of step 2, and what comes out in step 4 of a training that is not interrupted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.expected: dict[str, int] = {}

    def of(self, *what: object) -> Path:
        return self.folder / "-".join(map(str, what))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """By four ranks on plain gloo, in two groups, under every strategy."""
    found = Saved(tmp_path_factory.mktemp("saved"))

    def program(me: Rank, device: Device | None) -> dict[str, int]:
        expected = {}
        for name, dtype in DTYPES.items():
            whole = begun(me.world, device, "NNN", 1, dtype=dtype)
            go_on(whole, steps=4)
            expected[name] = bits(values(whole))
            for one in STRATEGIES:
                part = begun(me.world, device, one, 2, dtype=dtype)
                go_on(part, steps=2)
                save(part, found.of(name, one), part.steps)
        for one in ("IIG", "NNN"):
            part = begun(me.world, device, one, 2, frozen=FROZEN)
            go_on(part, steps=2)
            save(part, found.of("frozen", one), part.steps)
        go_on(part, steps=2)
        return {**expected, "frozen": bits(values(part))}

    found.expected = together(4, program, found.folder / "ranks", simulated=False, silence_s=800)[0]
    return found


def resumed(saved: Saved, me: Rank, device: Device | None, what: str, by: str, name: str, group: int) -> bool:
    """Does ``name``, in groups of ``group``, go on where ``by`` ended?"""
    how: dict[str, Any] = {"dtype": DTYPES.get(what, torch.float32), "frozen": FROZEN if what == "frozen" else ()}
    made = begun(me.world, device, name, group, **how)
    assert load(made, saved.of(what, by)) == 2
    go_on(made, steps=2)
    return bits(values(made)) == saved.expected[what]


@pytest.mark.parametrize("ranks", [4, 2])
def test_any_strategy_goes_on_from_any_other_with_any_groups(ranks: int, saved: Saved, tmp_path: Path) -> None:
    groups = [size for size in (1, 2, 4) if size <= ranks]
    cases = [
        (what, by, name, groups[at % len(groups)])
        for what, turn in (("fp32", 1), ("bf16", 6))
        for at, (name, by) in enumerate(zip(STRATEGIES, STRATEGIES[turn:] + STRATEGIES[:turn], strict=True))
    ]
    cases += [("frozen", "IIG", "NNN", 1), ("frozen", "IIG", "GGG", 2), ("frozen", "NNN", "NIG", 2)]

    def program(me: Rank, device: Device | None) -> list[str]:
        return [f"{case}" for case in cases if not resumed(saved, me, device, *case)]

    assert together(ranks, program, tmp_path, simulated=False, silence_s=800) == [[]] * ranks


def test_one_rank_goes_on_alone_and_more_ranks_go_on_from_it(saved: Saved, tmp_path: Path) -> None:
    def on_its_own() -> int:
        single = begun(1, None, "GGG", 1)
        load(single, saved.of("fp32", "IIG"))
        save(single, tmp_path / "single", single.steps)
        go_on(single, steps=2)
        return bits(values(single))

    assert forked(on_its_own, tmp_path / "alone") == saved.expected["fp32"]

    def program(me: Rank, device: Device | None) -> int:
        made = begun(me.world, device, "NGG", 2)
        load(made, tmp_path / "single")
        go_on(made, steps=2)
        return bits(values(made))

    assert together(2, program, tmp_path, simulated=False) == [saved.expected["fp32"]] * 2


def test_on_the_simulated_gpu_it_is_the_same_and_nothing_races(saved: Saved, tmp_path: Path) -> None:
    """Saved there, and loaded there, with slow lanes: what a gather or the host reads has been written."""

    def program(me: Rank, device: Device | None) -> list[str]:
        wrong = []
        for what, name in (("fp32", "NNG"), ("bf16", "III"), ("fp32", "IIG"), ("bf16", "GGG")):
            first = begun(me.world, device, name, 2, dtype=DTYPES[what])
            load(first, saved.of(what, "NIG"))
            go_on(first, steps=1)
            save(first, tmp_path / name, first.steps)
            then = begun(me.world, device, name, 2, dtype=DTYPES[what])
            load(then, tmp_path / name)
            go_on(then, steps=1)
            if bits(values(then)) != saved.expected[what]:
                wrong.append(name)
        return wrong

    slow = {"stream:compute": 50.0, "stream:gather": 20.0}
    assert together(4, program, tmp_path, slow=slow, silence_s=800) == [[]] * 4
    detector = RaceDetector()
    for rank in range(4):
        detector.feed(rank, TraceReader(file_of(tmp_path / "trace", rank)).read())
    detector.finish()
    assert detector.races == []


def test_adam_goes_on_with_its_moments_bit_for_bit(tmp_path: Path) -> None:
    """Gradients as they come: under the same strategy nothing is summed in another order."""

    def kept(trained: ShardedEngine) -> list[list[Tensor]]:
        state = list(trained.optimizer.state.values())
        moments = [[one[kind] for one in state] for kind in ("exp_avg", "exp_avg_sq", "step")]
        return [[values for _, values in trained.partitions()], *moments]

    def program(me: Rank, device: Device | None) -> list[str]:
        wrong = []
        for name in ("NNN", "NNG", "III", "IIG", "GGG"):
            whole, part = (
                engine(net(), strategy(name), Topology.of(2), device, optimizer=adamw, dtype=torch.bfloat16)
                for _ in range(2)
            )
            go_on(whole, steps=2)
            save(whole, tmp_path / name, whole.steps)
            go_on(whole, steps=2)
            load(part, tmp_path / name)
            go_on(part, steps=2)
            assert len(kept(part)[1]) == len(part.pieces)
            if [bits(one) for one in kept(whole)] != [bits(one) for one in kept(part)]:
                wrong.append(name)
        return wrong

    assert together(4, program, tmp_path / "ranks", simulated=False, silence_s=800) == [[]] * 4


def test_what_is_gathered_together_may_be_another(tmp_path: Path) -> None:
    """Blocks in a list are a unit each; in sequence, their layers are."""

    def bits_of_both() -> list[int]:
        first, cut = (begun(1, None, "GGG", 1) for _ in range(2))
        other = model(MICRO_BATCHES)
        other.blocks = nn.Sequential(*other.blocks)  # type: ignore[assignment]
        then = engine(other, strategy("GGG"), alone(), None, accumulation=MICRO_BATCHES)
        assert len(then.units) > len(first.units)
        go_on(cut, steps=2)
        save(cut, tmp_path / "step-2", 2)
        load(then, tmp_path / "step-2")
        go_on(first, steps=4)
        go_on(then, steps=2)
        return [bits(values(one)) for one in (first, then)]

    first, then = forked(bits_of_both, tmp_path / "ranks")
    assert first == then


def test_each_element_is_in_one_file_and_read_by_those_who_need_it(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {name: list(read(saved.of("fp32", name)).files) for name in ("NNN", "III", "GGG")}
    assert files["NNN"] == ["rank-0.safetensors"]
    assert files["III"] == ["rank-0.safetensors", "rank-1.safetensors"]  # the second group has the same
    assert files["GGG"] == [f"rank-{rank}.safetensors" for rank in range(4)]
    elements = sum(parameter.numel() for parameter in net().parameters())
    original = checkpoint._Reader._read

    def program(me: Rank, device: Device | None) -> int:
        count = 0

        def counting(*arguments: Any) -> Tensor:
            nonlocal count
            found = original(*arguments)
            count += found.numel()
            return found

        monkeypatch.setattr(checkpoint._Reader, "_read", counting)
        load(begun(me.world, device, "GGG", 2), saved.of("fp32", "NNN"))
        return count

    counts = together(4, program, tmp_path, simulated=False)
    assert sum(counts) == 3 * elements  # shards, masters, momentum
    assert max(counts) < 3 * elements / 4 + 100

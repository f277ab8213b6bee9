"""All 14 strategies train as torch's DDP does.

Sums in another order give other bits. So the first story takes that away: gradients of so few bits that every sum is
exact, and steps of powers of two. Then each strategy must give DDP's parameters bit for bit. The second story has
gradients as they come, and holds the strategies to what DDP itself does when its ranks change places.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from streamrace.device.device import Device
from streamrace.device.ranks.cluster import Rank
from streamrace.scenarios.sharding.engine import ShardedEngine
from streamrace.scenarios.sharding.strategy import legal, strategy
from streamrace.scenarios.sharding.topology import Topology
from tests.sharding.ranks import together
from tests.sharding.training import adamw, batch, by_ddp, engine, few_bits, net, train, values

STEPS = 10
FEW = 2  # where bounds are compared: what sums in another order do, they do in each step
STRATEGIES = [str(one) for one in legal()]
Program = Callable[[Rank, Device | None], dict[str, Any]]


def differing(expected: list[Tensor], found: list[Tensor]) -> int:
    """Numbers that are not the same bit for bit."""
    return sum(int((one != other).sum()) for one, other in zip(expected, found, strict=True))


def apart(expected: list[Tensor], found: list[Tensor]) -> float:
    return max(float((one.double() - other.double()).abs().max()) for one, other in zip(expected, found, strict=True))


def trained(
    me: Rank, device: Device | None, topology: Topology, name: str, *, steps: int = STEPS, **how: Any
) -> ShardedEngine:
    made = engine(net(exact=how.pop("exact", True)), strategy(name), topology, device, **how)
    train(made, me.rank, steps=steps)
    return made


@pytest.mark.parametrize(
    ("ranks", "steps"),
    [
        (4, {1: 3}),  # of three micro-batches: on the simulated GPU, below
        pytest.param(4, {1: STEPS, 3: STEPS}, marks=pytest.mark.wide),
        pytest.param(8, {1: STEPS, 3: STEPS}, marks=pytest.mark.wide),
    ],
)
def test_every_strategy_gives_the_parameters_of_ddp_bit_for_bit(
    ranks: int, steps: dict[int, int], tmp_path: Path
) -> None:
    """``steps``: by accumulation."""

    def program(me: Rank, device: Device | None) -> dict[str, int]:
        topology = Topology.of(ranks // 2)
        found = {}
        for accumulation, count in steps.items():
            how = {"steps": count, "accumulation": accumulation}
            reference = by_ddp(net(exact=True), me.rank, **how)
            for name in STRATEGIES:
                ours = values(trained(me, device, topology, name, **how))
                found[f"{name}, {accumulation}"] = differing(reference, ours)
        return found

    found = together(ranks, program, tmp_path, simulated=False, silence_s=800)
    expected = [f"{name}, {accumulation}" for accumulation in steps for name in STRATEGIES]
    assert found == [dict.fromkeys(expected, 0)] * ranks


@pytest.mark.parametrize(
    ("ranks", "accumulation", "steps"),
    [
        (4, 3, 2),
        *(pytest.param(*row, marks=pytest.mark.wide) for row in [(4, 3, STEPS), (4, 1, 2), (8, 1, 2), (8, 3, 1)]),
    ],
)
def test_on_the_simulated_gpu_they_do_so_too(ranks: int, accumulation: int, steps: int, tmp_path: Path) -> None:
    """Its virtual time, streams and buffers that take turns change no bit. In two steps of three micro-batches each
    buffer has had all its turns; ten steps, and eight ranks, take minutes."""
    how = {"steps": steps, "accumulation": accumulation}

    def by_torch(me: Rank, device: Device | None) -> list[list[float]]:
        return [one.flatten().tolist() for one in by_ddp(net(exact=True), me.rank, **how)]

    reference = together(ranks, by_torch, tmp_path / "ddp", simulated=False)[0]

    def program(me: Rank, device: Device | None) -> dict[str, int]:
        expected = [torch.tensor(one) for one in reference]
        topology = Topology.of(ranks // 2)
        found = {}
        for name in STRATEGIES:
            made = engine(net(exact=True), strategy(name), topology, device, accumulation=accumulation)
            train(made, me.rank, steps=steps)
            found[name] = differing(expected, [one.flatten() for one in values(made)])
        return found

    assert together(ranks, program, tmp_path, silence_s=800) == [dict.fromkeys(STRATEGIES, 0)] * ranks


def test_gradients_as_they_come_stay_within_what_reordered_sums_explain(tmp_path: Path) -> None:
    """How far is far? DDP's own parameters move when its ranks change places: the same sums in another order.

    The largest of those moves is the measure; ours may be four times as far, as they also split and regroup the sums.
    """

    def program(me: Rank, device: Device | None) -> dict[str, Any]:
        there: dict[str, int] = {"steps": FEW, "accumulation": 3}
        reference = by_ddp(net(), me.rank, **there)
        moves = [apart(reference, by_ddp(net(), (me.rank + turn) % me.world, **there)) for turn in (1, 2, 3)]
        topology = Topology.of(2)
        ours = {
            name: apart(reference, values(trained(me, device, topology, name, steps=FEW, accumulation=3, exact=False)))
            for name in STRATEGIES
        }
        return {"moves": moves, "ours": ours}

    found = together(4, program, tmp_path, simulated=False, silence_s=800)[0]
    bound = 4 * max(found["moves"])
    assert 0 < bound < 1e-4
    assert {name: distance for name, distance in found["ours"].items() if distance > bound} == {}


def test_where_the_order_of_sums_is_the_same_the_bits_are(tmp_path: Path) -> None:
    """Two ranks: a sum of two has one order."""

    def program(me: Rank, device: Device | None) -> dict[str, int]:
        reference = by_ddp(net(), me.rank, steps=STEPS, accumulation=1)
        topology = Topology.of(1)
        return {
            name: differing(reference, values(trained(me, device, topology, name, exact=False))) for name in STRATEGIES
        }

    assert together(2, program, tmp_path, simulated=False, silence_s=800) == [dict.fromkeys(STRATEGIES, 0)] * 2


def test_bf16_with_an_fp32_optimizer_stays_within_its_own_bound(tmp_path: Path) -> None:
    """The measure is bf16's own: NNN with ranks that changed places, in bf16."""

    def program(me: Rank, device: Device | None) -> dict[str, Any]:
        topology = Topology.of(2)
        how: dict[str, Any] = {"accumulation": 3, "dtype": torch.bfloat16, "exact": False, "optimizer": adamw}
        how["steps"] = FEW
        reference = values(trained(me, device, topology, "NNN", **how))
        moves = []
        for turn in (1, 2, 3):
            made = engine(net(), legal()[0], topology, device, accumulation=3, dtype=torch.bfloat16, optimizer=adamw)
            train(made, (me.rank + turn) % me.world, steps=FEW)
            moves.append(apart(reference, values(made)))
        ours = {name: apart(reference, values(trained(me, device, topology, name, **how))) for name in STRATEGIES}
        types = {str(one.dtype) for one in values(trained(me, device, topology, "IIG", **how))}
        return {"moves": moves, "ours": ours, "types": sorted(types)}

    found = together(4, program, tmp_path, simulated=False, silence_s=800)[0]
    bound = 4 * max(found["moves"])
    assert found["types"] == ["torch.bfloat16"]
    assert 0 < bound < 0.1
    assert {name: distance for name, distance in found["ours"].items() if distance > bound} == {}


@pytest.mark.parametrize("frozen", [("embedding", "blocks.0"), ("embedding", "head", "blocks.0.up", "blocks.1.norm")])
def test_partly_trainable_models_train_what_is_trained(frozen: tuple[str, ...], tmp_path: Path) -> None:
    """Whole units, and single parameters within one."""

    def program(me: Rank, device: Device | None) -> dict[str, list[int]]:
        begin = [one.detach().clone() for one in net().parameters()]
        model = net(exact=True, frozen=frozen)
        reference = by_ddp(model, me.rank, steps=3, accumulation=2)
        topology = Topology.of(2)
        found = {}
        for name in STRATEGIES:
            made = engine(net(exact=True, frozen=frozen), strategy(name), topology, device, accumulation=2)
            train(made, me.rank, steps=3)
            after = values(made)
            still = [
                one for one, of in zip(range(len(begin)), dict(model.named_parameters()), strict=True)
                if of.startswith(frozen)
            ]  # fmt: skip
            moved = differing([begin[one] for one in still], [after[one] for one in still])
            found[name] = [differing(reference, after), moved]
        return found

    found = together(4, program, tmp_path, simulated=False, silence_s=800)
    assert found == [{name: [0, 0] for name in STRATEGIES}] * 4


def test_gradients_are_clipped_by_the_norm_of_all_of_them(tmp_path: Path) -> None:
    """As torch's ``clip_grad_norm_`` does with DDP's gradients; the norm is the same number on all ranks."""

    def program(me: Rank, device: Device | None) -> dict[str, Any]:
        wrapped = nn.parallel.DistributedDataParallel(net())
        wrapped(*batch(me.rank, 0, 0)).backward()
        expected = float(torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 0.05))
        gradients = [one.grad for one in wrapped.parameters() if one.grad is not None]
        topology = Topology.of(2)
        norms, moves = {}, {}
        for name in STRATEGIES:
            before = [one.detach().clone() for one in net().parameters()]
            made = engine(net(), strategy(name), topology, device, clip=0.05)
            made.backward(made(*batch(me.rank, 0, 0)))
            norm = made.step()
            assert norm is not None
            norms[name] = float(norm)
            steps = [(old - new) / 0.125 for old, new in zip(before, values(made), strict=True)]
            moves[name] = apart(gradients, steps)
        return {"expected": expected, "norms": norms, "moves": moves}

    found = together(4, program, tmp_path, simulated=False, silence_s=800)
    expected = found[0]["expected"]
    assert expected > 0.05  # it is clipped
    for rank in found:
        assert rank["norms"] == found[0]["norms"]  # bit for bit
        for name in STRATEGIES:
            assert rank["norms"][name] == pytest.approx(expected, rel=1e-6)
            assert rank["moves"][name] < 1e-6


def test_tied_weights_are_one_parameter_that_two_modules_need(tmp_path: Path) -> None:
    """As in GPT-2 and Falcon: the embedding is the head too. Its gradient is complete when both have given theirs."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net(exact=True)
            self.out = nn.Linear(self.net.embedding.embedding_dim, self.net.embedding.num_embeddings)
            self.out.weight = self.net.embedding.weight  # the bias is its own

        def forward(self, words: Tensor, classes: Tensor) -> Tensor:
            hidden = self.net.embedding(words)
            for block in self.net.blocks:
                hidden = block(hidden)
            scores = self.out(hidden).float()
            return nn.functional.cross_entropy(scores, words) + self.net(words, classes)

    def tied() -> nn.Module:
        torch.manual_seed(5)
        model = Tied()
        model.out.bias.register_hook(few_bits)
        return model

    def program(me: Rank, device: Device | None) -> dict[str, int]:
        reference = by_ddp(tied(), me.rank, steps=3, accumulation=2)
        topology = Topology.of(2)
        found = {}
        for name in ("NNN", "NIG", "IIG", "IGG", "GGG"):
            made = engine(tied(), strategy(name), topology, device, accumulation=2)
            train(made, me.rank, steps=3)
            found[name] = differing(reference, values(made))
        return found

    found = together(4, program, tmp_path, simulated=False, silence_s=800)
    assert found == [dict.fromkeys(("NNN", "NIG", "IIG", "IGG", "GGG"), 0)] * 4


@pytest.mark.parametrize("inside", [True, False], ids=["the hooks run again", "the hooks stay outside"])
def test_gradient_checkpointing_changes_no_bit(inside: bool, tmp_path: Path) -> None:
    """A block is computed again in the backward pass, as a module with its hooks, or its forward method alone."""

    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net(exact=True)

        def forward(self, words: Tensor, classes: Tensor) -> Tensor:
            hidden = self.net.embedding(words)
            for block in self.net.blocks:
                hidden = checkpoint(block, hidden, use_reentrant=False) if inside else block(hidden)
            return nn.functional.cross_entropy(self.net.head(hidden).float(), classes)

    def program(me: Rank, device: Device | None) -> dict[str, int]:
        reference = by_ddp(net(exact=True), me.rank, steps=FEW, accumulation=2)
        topology = Topology.of(2)
        found = {}
        for name in STRATEGIES:
            model = Again()
            if not inside:
                for block in model.net.blocks:
                    block.forward = partial(checkpoint, block.forward, use_reentrant=False)
            made = engine(model, strategy(name), topology, device, accumulation=2)
            train(made, me.rank, steps=FEW)
            found[name] = differing(reference, values(made))
        return found

    found = together(4, program, tmp_path, simulated=False, silence_s=800)
    assert found == [dict.fromkeys(STRATEGIES, 0)] * 4

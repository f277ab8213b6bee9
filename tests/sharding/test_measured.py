"""What the engine keeps and sends is what the formulas of PaRO say, to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from streamrace.metrics import MemoryMetrics, TrafficMetrics
from streamrace.scenarios.sharding.formulas import Size, exchanges, padded_memory, sent
from streamrace.scenarios.sharding.layout import padded
from streamrace.scenarios.sharding.schemes import Cluster, Scheme
from streamrace.scenarios.sharding.strategy import legal
from streamrace.scenarios.sharding.topology import Topology
from streamrace.trace.records import Phase, TraceRecord
from tests.sharding.training import adamw, engine, forked, net, rehearsal, train

ACCUMULATION = 3
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
FROZEN = ("embedding", "blocks.0.up", "blocks.1.norm")
SHAPES = [(4, 2), (8, 4), (8, 2)]  # ranks, and how many to a group; a node has a group


def before(step: int, records: list[TraceRecord]) -> list[TraceRecord]:
    """What was there when the step began."""
    return records[: next(at for at, one in enumerate(records) if isinstance(one, Phase) and one.step == step)]


def counted(ranks: int, group: int, precision: str, frozen: tuple[str, ...]) -> dict[str, Any]:
    """By strategy: bytes by kind and sent in a step, as counted in a trace and as the formulas have them."""
    cluster = Cluster(ranks=ranks, group=group, gpus=group)
    found = {}
    for one in legal():
        with rehearsal(ranks) as (device, records):
            made = engine(
                net(frozen=frozen), one, Topology.of(group), device,
                dtype=TYPES[precision], accumulation=ACCUMULATION, optimizer=adamw,
            )  # fmt: skip
            for step in (1, 2):
                device.phase(step, 1, "step")
                train(made, 0, steps=1)
        memory = MemoryMetrics()
        memory.feed(records)
        kinds = memory.result().kind_peaks
        nodes = [rank // group for rank in range(ranks)]
        early, whole = TrafficMetrics(nodes), TrafficMetrics(nodes)
        early.feed(before(2, records))
        whole.feed(records)
        first, both = early.result(), whole.result()
        units = [piece.numel for piece in made.pieces]
        trained = [piece.numel for piece in made.pieces if piece.trained]
        kept = padded_memory(Scheme(one), units, cluster, trained=trained, precision=precision)
        size = Size(sum(padded(unit, ranks) for unit in units), sum(padded(unit, ranks) for unit in trained))
        said = sent(exchanges(Scheme(one), size, cluster, accumulation=ACCUMULATION, precision=precision), cluster)
        state = kinds.get("master", 0) + kinds.get("optimizer", 0)
        found[str(one)] = [
            [kinds["primary"], kinds["gradient"], state],
            [kept.parameters, kept.gradients, kept.state],
            [both.within - first.within, both.between - first.between],
            [said.within, said.between],
        ]
    return found


@pytest.mark.parametrize(("ranks", "group"), SHAPES)
@pytest.mark.parametrize(("precision", "frozen"), [("bf16", ()), ("fp32", FROZEN)])
def test_memory_and_bytes_sent_are_those_of_the_formulas(
    ranks: int, group: int, precision: str, frozen: tuple[str, ...], tmp_path: Path
) -> None:
    found = forked(lambda: counted(ranks, group, precision, frozen), tmp_path)
    assert len(found) == 14
    for kept, formula, went, said in found.values():
        assert kept == formula
        assert went == said

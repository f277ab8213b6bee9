"""Which ranks of a job do the same: the classes, and that a class whose ranks differ is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamrace.scenarios.job import Job, job
from streamrace.studies import classes
from streamrace.studies.classes import CheckedClasses
from streamrace.studies.dry_run import rehearse
from streamrace.studies.layers import extend
from tests.studies.small import small

PROGRAM = """
import torch
from torch import distributed, nn

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(257, 257) for _ in range(2)])
    def forward(self, x, y):
        for layer in self.layers:
            x = layer(x).relu()
        if distributed.get_rank() in ({ranks}):
            x = x * 1
        return (x - y).square().mean()

def batch(micro_batch, sequence):
    x = torch.zeros(micro_batch, 257, dtype=torch.bfloat16)
    return {{"x": x, "y": x.clone()}}

def model():
    return Plain(), batch
"""


def checked(made: Job, folder: Path) -> CheckedClasses:
    sizes = rehearse(made, folder / "first", races=False).sizes
    return classes.check(made, folder / "ranks", sizes)


@pytest.fixture
def of_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The classes of a job whose model multiplies once more on some ranks."""

    def call(name: str, ranks: str) -> CheckedClasses:
        monkeypatch.syspath_prepend(str(tmp_path))
        (tmp_path / f"{name}.py").write_text(PROGRAM.format(ranks=ranks))
        return checked(job(model=f"{name}:model", nodes=1, gpus=6, sequence=16), tmp_path / name)

    return call


def test_ranks_are_compared_beside_the_run_of_the_whole(tmp_path: Path) -> None:
    """To the same end as when all of them run after it; what is found of it can be written meanwhile."""
    made = small(tmp_path / "job", gpus=2)
    told: list[str] = []
    found = extend.rehearsed(
        made, tmp_path / "whole", told.append, exact=True, meanwhile=lambda whole: told.append(f"{whole.classes}")
    )
    assert found.classes is not None
    assert found.classes.as_dict() == classes.check(made, tmp_path / "ranks", found.sizes).as_dict()
    assert told.index("None") < told.index("4 classes of ranks: comparing 4 ranks on 2 layers")
    assert not (tmp_path / "whole" / "ranks").exists()


def test_ranks_of_a_stock_job_do_the_same(tmp_path: Path) -> None:
    """Any rank runs, and another member of its class does the same to the byte; a straggler is a class of its own."""
    found = checked(small(tmp_path / "job", slow={"rank:5": 2.0}), tmp_path)
    assert [one.ranks.members for one in found.classes] == [(0,), (1, 2, 6), (3,), (4,), (5,), (7,)]
    assert found.compared == 1 and not found.unequal
    assert [one.ranks.members[0] for one in found.classes if one.from_first] == [5]
    assert found.slowest.ranks.members == (5,)


def test_who_has_padding_is_a_class(of_program: Any) -> None:
    """257 and 257 x 257 elements over six ranks: the last one's shards are not full."""
    found = of_program("padded", "7,")
    assert [one.ranks.members for one in found.classes] == [(0,), (1, 2, 3, 4), (5,)]
    assert "with padding in its shards" in found.classes[2].ranks.what
    assert not found.unequal


def test_what_only_rank_0_does_is_told(of_program: Any) -> None:
    found = of_program("speaks", "0,")
    assert not found.unequal  # rank 0 is alone in its class
    first, others, padded = found.classes
    assert not first.from_first and others.from_first.startswith("rank 0: aten::mul")
    assert padded.from_first  # its padding, and that


def test_a_class_whose_ranks_differ_is_found(of_program: Any) -> None:
    """Nothing says that these ranks differ but their traces: whichever was drawn, its class is no class."""
    found = of_program("different", "1,")
    (one,) = found.unequal
    assert one.ranks.members == (1, 2, 3, 4)
    assert "rank 1: aten::mul" in one.difference and "different.py" in one.difference


def test_a_rank_of_our_own_engine_is_like_the_others(tmp_path: Path) -> None:
    made = small(tmp_path / "job")
    options = {"model": made.model, "nodes": 2, "gpus": 4, "sequence": 64, "sharding": "IIG"}
    found = checked(job(**options), tmp_path)
    assert not found.unequal and len(found.classes) == 5

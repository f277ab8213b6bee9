"""A line that ``streamrace fix`` puts into a program tells by which names the program knows a block of memory there."""

from __future__ import annotations

from pathlib import Path

import torch

from streamrace.device import naming
from streamrace.device.work import place


def test_the_inserted_line_tells_the_names_of_tensors_at_its_place(tmp_path: Path) -> None:
    file = tmp_path / "names.jsonl"
    program = f"""
def step(batch):
    total = batch * 2
    several = [batch, total]
    {naming.line(file, ["several[0]", "batch.missing"])}
    return total
"""
    names: dict[str, object] = {}
    exec(compile(program, "train.py", "exec"), names)
    batch = torch.ones(8, device="cuda")
    total = names["step"](batch)  # type: ignore[operator]

    ((rank, named),) = naming.read(file)
    block, other = place(batch)[0], place(total)[0]
    assert rank == 0
    assert {name: (listed, tuple(blocks)) for name, (listed, blocks) in named.items()} == {
        "several[0]": (False, (block,)),
        "batch": (False, (block,)),
        "total": (False, (other,)),
        "several": (True, (block, other)),
    }

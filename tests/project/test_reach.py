"""Public programs: the list is whole, and what is said of a program follows from what it did."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from benchmarks.reach import running
from benchmarks.reach.__main__ import table
from benchmarks.reach.programs_list import FOLDER, LIST, Program, programs
from benchmarks.reach.running import Said

ROOT = LIST.parents[1]
TELLS = """
import os

import torch

device = os.environ["REACH_DEVICE"]
x = torch.ones(8, device=device)
{0}
print("reach:", x.sum().item())
"""


def test_the_list_has_at_least_eighty_programs_of_public_packages_whose_versions_are_pinned() -> None:
    listed = list(programs())
    assert len({one.name for one in listed}) == len(listed) >= 80
    assert all(one.file.exists() for one in listed)
    pinned = "\n".join(file.read_text() for file in ROOT.glob("requirements*.txt")).lower().replace("_", "-")
    for package in {package for one in listed for package in one.packages}:
        assert re.search(rf"^{package.lower().replace('_', '-')}==\d", pinned, re.MULTILINE), package


def test_every_program_is_in_the_list_and_parses() -> None:
    listed = {one.file for one in programs()}
    there = {file for file in FOLDER.glob("*.py") if file.name != "shared.py"}
    assert there == listed
    for file in there:
        ast.parse(file.read_text())


@pytest.mark.parametrize(
    ("body", "alone", "said", "why"),
    [
        ("", "", Said.EQUAL, ""),
        ("x += device == 'cuda'", "", Said.OTHER, "[' 16.0'] and on the CPU [' 8.0']"),
        ("x += device == 'cuda'", "needs a GPU", Said.RAN, "needs a GPU"),
        ("x.to_sparse()", "", Said.REFUSED, "aten::_to_sparse of a sparse"),
        ("raise ValueError('not this size')", "", Said.FAILED, "ValueError: not this size"),
    ],
)
def test_what_is_said_of_a_program_follows_from_what_it_did(
    tmp_path: Path, body: str, alone: str, said: Said, why: str
) -> None:
    file = tmp_path / "train.py"
    file.write_text(TELLS.format(body))
    result = running.run(Program("own program", file, (), ("torch",), 0, 1, alone), tmp_path)
    assert result.said == said
    assert why in result.why and bool(why) == bool(result.why)
    (row,) = table([result]).to_dict("records")
    assert row["result"] == said.value and row["packages"].startswith("torch 2")

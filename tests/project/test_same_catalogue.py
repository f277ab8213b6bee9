"""``benchmarks/same_catalogue.py`` says each race that another version finds and this one does not, and the reverse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.same_catalogue import differences

WRAPPER = {"file": "torch/distributed/distributed_c10d.py", "line": 3245, "function": "all_reduce"}
CALL = {"file": "stage3.py", "line": 3027, "function": "has_overflow"}


def race(*stack: dict[str, Any], **changes: Any) -> dict[str, Any]:
    side = {"kernel": "nccl::all_reduce", "access": "read", "stream": "stream 4", "stack": list(stack)}
    fields = {"kind": "write-read", "first": {**side, "access": "write"}, "second": side}
    return {**fields, "occurrences": 6, "manifested": 0, "ranks": [0, 1], **changes}


def kept(folder: Path, name: str, *races: dict[str, Any], verdict: str = "race") -> Path:
    file = folder / name
    file.write_text(json.dumps({"verdict": verdict, "races": races}))
    return file


def test_order_and_lines_that_only_pass_a_call_on_make_no_difference(tmp_path: Path) -> None:
    other = race(CALL, kind="reused")
    old = kept(tmp_path, "old", race(WRAPPER, CALL), other)
    assert differences(old, kept(tmp_path, "new", other, race(CALL))) == []


def test_a_race_that_is_lost_or_new_or_of_another_count_is_said(tmp_path: Path) -> None:
    old = kept(tmp_path, "old", race(CALL))
    verdict, lost = differences(old, kept(tmp_path, "new", verdict="clean"))
    assert verdict == "race before, clean now" and lost.startswith("not found any more: write-read: write by nccl")
    assert len(differences(old, kept(tmp_path, "new", race(CALL), race(CALL)))) == 1
    assert len(differences(old, kept(tmp_path, "new", race(CALL, occurrences=5)))) == 2
    assert len(differences(old, kept(tmp_path, "new", race({**CALL, "line": 1})))) == 2


def test_a_side_without_a_verdict_differs_from_one_with(tmp_path: Path) -> None:
    assert differences(tmp_path / "none", kept(tmp_path, "new", verdict="clean")) == ["no verdict before, clean now"]

"""Stock DeepSpeed as rank 0 of several on a dry run: it records what rank 0 records among live ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rehearsed import difference, rehearse, rehearse_apart
from test_deepspeed_races import CAT, COPY, GATHER, places, without_the_fix
from test_deepspeed_races import HPZ as RACY
from zero_cases import BF16, BOTH, CLIP, FP16, HPZ, OVERLAP, OWN, PAGEABLE, SCRIPT, TWICE, Case, simulate

from streamrace.detectors import find_races
from streamrace.device.dry import REAL

pytestmark = pytest.mark.imports("tests.device.zero.zero_imports")
CASES = {
    "zero-1 overlapped in bf16": Case(1, OVERLAP, BF16),
    "zero-2 in fp16": Case(2, OVERLAP, FP16),
    "zero-3 without overlap, clipped": Case(3, {"overlap_comm": False}, {**BF16, **CLIP}),
    "hpZ, accumulated": Case(3, HPZ, {**BF16, **TWICE}, ranks=4),
    "zero-3 with both offloaded, and DeepSpeed's own Adam": Case(3, {**OVERLAP, **BOTH}, BF16, OWN),
    "zero-1 offloaded, pageable": Case(1, {**OVERLAP, "offload_optimizer": PAGEABLE}, BF16),
    "zero-0 with FusedAdam": Case(0, {}, BF16, OWN),
    "zero-2, accumulated and clipped": Case(2, OVERLAP, {**BF16, **TWICE, **CLIP}),
    "zero-3 in fp16": Case(3, OVERLAP, FP16),
    "hpZ and qwZ": Case(3, {**HPZ, "zero_quantized_weights": True}, BF16, ranks=4),
}
WIDE = {
    "zero-2 in fp16",
    "zero-3 without overlap, clipped",
    "zero-0 with FusedAdam",
    "zero-2, accumulated and clipped",
    "zero-3 in fp16",
    "hpZ and qwZ",
    "zero-1 offloaded, pageable",
}
# What DeepSpeed compares and branches on is known (1,024 bytes), or all that this small model has is.
REALS = {"few": 1024, "all": REAL}


def unread(case: Case) -> Case:
    """The script reads no value at its end. No number of fp16 overflows: a dry run takes it that none does."""
    more = {**case.more, "look": False}
    if "fp16" in more:
        more["fp16"] = {**more["fp16"], "initial_scale_power": 4}
    return replace(case, more=more)


def arguments(case: Case, folder: Path) -> tuple[str, str]:
    return json.dumps(case.config), str(folder)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.wide] * (name in WIDE)) for name in CASES])
def test_a_dry_run_records_what_rank_0_does(name: str, tmp_path: Path) -> None:
    case = unread(CASES[name])
    expected = simulate(case, tmp_path / "live")
    for known, real in REALS.items():
        given = arguments(case, tmp_path)
        found = rehearse_apart(SCRIPT, given, tmp_path / known, ranks=case.ranks, real=real)
        # Partitions are reduced to their owners in turn, so some ranks have more to do, and others wait for them.
        wrong = difference(expected, found, clocks=case.stage not in (1, 2))
        assert not wrong, f"{known}: {wrong}"
        assert find_races(found) == []


def test_hpz_without_its_synchronisation_is_found_dry_as_live(tmp_path: Path) -> None:
    case = unread(RACY)
    with without_the_fix():
        expected = find_races(simulate(case, tmp_path / "live"))
        found = find_races(rehearse(SCRIPT, arguments(case, tmp_path), tmp_path / "dry", ranks=case.ranks))
    assert places(found) == places(expected) == {(COPY, GATHER), (COPY, CAT)}

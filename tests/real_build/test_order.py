"""The simulated device records the waits that torch's real CUDA build asks CUDA for, in their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamrace.trace.files import TraceReader
from tests.real_build.building import ROOT, RealBuild
from tests.real_build.order import ALL, HOST, Waiting, of_calls, of_trace
from tests.real_build.running import PROGRAMS, Ran, hpz, run, simulate

pytestmark = pytest.mark.real_build

# Programs in which the simulated device's host waits twice: see below.
MASKS = ("a_mask_makes_the_host_wait_for_what_came_before", "what_a_mask_selects_is_read_once_the_host_has_counted")


def _recorded(folder: Path, *words: str | Path, ranks: int = 0) -> list[list[Waiting]]:
    simulate(*words, ranks=ranks, trace=folder if ranks else folder / "rank0.trace")
    return [of_trace(TraceReader(folder / f"rank{rank}.trace").read()) for rank in range(max(ranks, 1))]


def _asked(ran: Ran) -> list[list[Waiting]]:
    return [of_calls(calls) for calls in ran.calls]


def test_stock_fsdp2_waits_as_recorded(real: RealBuild, tmp_path: Path) -> None:
    program = ROOT / "examples" / "fsdp2.py"
    asked = _asked(run(real, program, ranks=2))
    assert [sum(who != HOST for who, _ in waits) for waits in asked] == [99, 99]
    assert asked == _recorded(tmp_path, program, ranks=2)


def test_small_programs_wait_as_recorded(real: RealBuild, tmp_path: Path) -> None:
    words = (PROGRAMS / "corpus.py", *MASKS)
    (asked,) = _asked(run(real, *words))
    assert {HOST, ALL} < {one for waiting in asked for one in waiting}
    assert [asked] == _recorded(tmp_path, *words)


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="the simulated device has two waits of the host, torch one"
)
def test_a_mask_makes_the_host_wait_once(real: RealBuild, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import torch\nx = torch.ones(8, device='cuda')\nx[x > 0]\n")
    assert _asked(run(real, program)) == _recorded(tmp_path, program)


def test_hpz_waits_as_recorded(real: RealBuild, tmp_path: Path) -> None:
    program = hpz(tmp_path)
    asked = _asked(run(real, program, ranks=2))
    assert all(sum(who != HOST for who, _ in waits) > 100 for waits in asked)
    assert asked == _recorded(tmp_path, program, ranks=2)


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="DDP's timers make the host wait; its future is a stream")
def test_ddp_waits_as_recorded(real: RealBuild, tmp_path: Path) -> None:
    program = PROGRAMS / "ddp.py"
    assert _asked(run(real, program, ranks=2)) == _recorded(tmp_path, program, ranks=2)

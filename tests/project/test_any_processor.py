"""What is run and shown is the same whatever processor runs it: nobody asks it, or we answer."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from streamrace.device import processor
from streamrace.frameworks.deepspeed import adapter

ROOT = Path(__file__).resolve().parents[2]
ASKED = ("_is_mkldnn_fp16_supported", "_is_mkldnn_bf16_supported")  # what DeepSpeed's CPU accelerator asks torch
ASK = "import os, torch; print(os.cpu_count(), torch.ops.mkldnn._is_mkldnn_fp16_supported(), end=' ')"


def refuses() -> bool:
    raise RuntimeError("no such processor")


@pytest.mark.parametrize("answer", [lambda: True, lambda: False, refuses], ids=["yes", "no", "error"])
def test_deepspeed_hears_the_same_types_whatever_the_processor_answers(
    answer: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ASKED:
        monkeypatch.setattr(torch.ops.mkldnn, name, answer)
    told = adapter.PlainAccelerator()
    assert told.is_fp16_supported() is True
    assert told.is_bf16_supported() is True
    assert told.supported_dtypes() == [torch.float, torch.bfloat16, torch.half]


def kernels(said: str, **more: str) -> str:
    """What the libraries under torch chose, in a process that begins as the commands, the bench and the tests do."""
    program = f"{said}; import torch; print(torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())"
    inherited = {name: value for name, value in os.environ.items() if name not in processor.KERNELS}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={**inherited, **more}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@functools.cache
def as_processors_are() -> tuple[str, str, str]:
    """Where nobody says anything: the kernels, how many processors there are, and what DeepSpeed asks."""
    processors, has_fp16, chosen = kernels(ASK, PYTHONPATH="").split(maxsplit=2)
    return chosen, processors, has_fp16


def test_kernels_are_those_that_every_processor_has() -> None:
    assert kernels("from streamrace.device import processor; processor.answer()") == "DEFAULT 1"
    assert kernels("import tests.conftest") == "DEFAULT 1"
    of = "from streamrace.repro.commands import group, table"
    assert kernels(f"{of}; group.LazyGroup(table.STREAMRACE).get_command(None, 'replay')") == "DEFAULT 1"


def test_who_says_otherwise_is_heard() -> None:
    """``make test-other-processor`` does."""
    assert kernels("from streamrace.device import processor; processor.answer()", OMP_NUM_THREADS="2") == "DEFAULT 2"


def test_a_users_own_training_runs_on_the_processor_as_it_is() -> None:
    as_it_is, *_ = as_processors_are()
    assert kernels("import repro.__main__, streamrace.repro.commands.watch") == as_it_is


def test_the_tests_themselves_run_on_them() -> None:
    """No plugin of pytest imported torch before ``tests/conftest.py`` could say so."""
    said = os.environ["ATEN_CPU_CAPABILITY"]
    assert torch.backends.cpu.get_cpu_capability() == said.upper()


def test_another_processor_can_be_pretended() -> None:
    """Or ``make test-other-processor`` would be ``make test``."""
    _, *true = as_processors_are()
    pretended = kernels(ASK, PYTHONPATH=str(ROOT / "tests" / "other_processor")).split()
    assert true[0] != pretended[0]
    assert {true[1], pretended[1]} == {"True", "False"}

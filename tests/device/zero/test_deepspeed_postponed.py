"""The backend of DeepSpeed's compiler is not executed before it is used: its import alone is half a second a rank."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.imports("tests.device.zero.zero_imports")

BACKEND = """
made.append(1)
if len(made) == failing:
    raise ImportError("not yet")
passes = {}
def register_compile_pass(name, how, contract=None):
    passes[name] = how, contract
"""


def load(folder: Path, failing: int = 0) -> tuple[ModuleType, list[int]]:
    """A module that counts how often it is executed, and fails the ``failing``th time."""
    from streamrace.frameworks.deepspeed.lazy_compiler import Postponed

    file = folder / "their_backend.py"
    file.write_text(BACKEND)
    spec = importlib.util.spec_from_file_location("their_backend", file)
    assert isinstance(spec, ModuleSpec) and spec.loader is not None
    spec.loader = Postponed(spec.loader)  # type: ignore[arg-type]
    module = importlib.util.module_from_spec(spec)
    made: list[int] = []
    module.__dict__.update(made=made, failing=failing)
    spec.loader.exec_module(module)
    return module, made


def test_what_is_registered_is_handed_on_when_something_else_is_asked_for(tmp_path: Path) -> None:
    module, made = load(tmp_path)
    module.register_compile_pass("one", print)
    module.register_compile_pass("two", len, contract="its contract")
    assert not hasattr(module, "__path__") and made == []
    assert module.passes == {"one": (print, None), "two": (len, "its contract")} and made == [1]
    module.register_compile_pass("three", abs)
    assert module.passes["three"] == (abs, None) and type(module) is ModuleType and made == [1]


def test_a_module_that_cannot_be_executed_says_so_each_time(tmp_path: Path) -> None:
    module, made = load(tmp_path, failing=1)
    module.register_compile_pass("one", print)
    with pytest.raises(ImportError, match="not yet"):
        _ = module.passes
    assert module.passes == {"one": (print, None)} and made == [1, 1]


def test_an_engine_is_made_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import deepspeed
    import torch
    from torch import distributed

    monkeypatch.setenv("LOCAL_RANK", "0")
    distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    backend = sys.modules["deepspeed.compile.backend"]
    assert "register_compile_pass" in vars(backend) and "opt_passes" not in vars(backend)
    assert "torch._inductor.lowering" not in sys.modules


def test_transformers_lists_the_files_of_its_models_once() -> None:
    from transformers.utils import import_utils

    listing = import_utils.create_import_structure_from_path
    assert listing.cache_info().maxsize is None
    llama = str(Path(import_utils.__file__).parents[1] / "models" / "llama")
    assert listing(llama) == listing.__wrapped__(llama)

"""Hugging Face's Trainer, accelerate and Lightning on the device: the CPU's bits, and what they are judged.

What they choose by the device is told alike: their optimizers are torch's fused ones, and gradients are not clipped.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from judged import story
from torch import Tensor, nn
from torch.utils.data import DataLoader
from world import races, together

STEPS = 3
SLOW = {"kernel:nccl::*": 50.0, "kernel:aten::*mm*": 20.0}


def weights(model: nn.Module) -> dict[str, Any]:
    return {name: value.detach().cpu().tolist() for name, value in model.state_dict().items()}


def points(count: int = 24) -> list[tuple[Tensor, Tensor]]:
    numbers = torch.Generator().manual_seed(1)
    return [(torch.randn(4, generator=numbers), torch.randn(1, generator=numbers)) for _ in range(count)]


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))


# -- Hugging Face ----------------------------------------------------------------------------------


def huggingface(rank: int, world: int, device: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2))
    random = torch.Generator().manual_seed(1)
    tokens = [torch.randint(64, (8,), generator=random) for _ in range(STEPS * 8)]
    arguments = TrainingArguments(
        output_dir="unused", max_steps=STEPS, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        optim="adamw_torch_fused", max_grad_norm=0.0, learning_rate=0.01, use_cpu=device == "cpu", report_to=[],
        save_strategy="no", disable_tqdm=True, dataloader_pin_memory=device == "cuda",
    )  # fmt: skip
    made = Trainer(model, arguments, train_dataset=[{"input_ids": one, "labels": one} for one in tokens])
    told = made.train()
    return told.training_loss, weights(model)


# -- accelerate ------------------------------------------------------------------------------------


def accelerated(rank: int, world: int, device: str) -> Any:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=device == "cpu", gradient_accumulation_steps=2)
    net = perceptron()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, fused=True)
    loader = DataLoader(points(), batch_size=2, pin_memory=device == "cuda")  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    seen = []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        seen.append(accelerator.gather(loss.detach()))
    return [one.tolist() for one in seen], weights(net)


# -- Lightning -------------------------------------------------------------------------------------


def lit(rank: int, world: int, device: str, *, waits: bool = True) -> Any:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = perceptron()

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            x, y = batch
            return nn.functional.mse_loss(self.net(x), y)

        def on_train_start(self) -> None:
            if waits and world > 1 and device == "cuda":
                torch.cuda.synchronize()  # the wait that Lightning leaves out, see below

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.01, fused=True)

    torch.manual_seed(0)
    module = Module()
    trainer = pl.Trainer(
        accelerator=device, devices=world if device == "cpu" or world > 1 else [0], logger=False, max_epochs=1,
        strategy="ddp" if world > 1 else "auto", enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=True,
    )  # fmt: skip
    trainer.fit(module, DataLoader(points(), batch_size=2, pin_memory=device == "cuda"))  # type: ignore[arg-type]
    return weights(module)


def quiet() -> None:
    warnings.simplefilter("ignore")


def warm(library: str) -> None:
    """Import it, and what DDP imports when it is first used: once, before the ranks are forked."""
    importlib.import_module(library)
    importlib.import_module("torch._dynamo")


def check(program: Callable[[int, int, str], Any], folder: Path) -> None:
    quiet()
    plain = together(2, program, folder / "plain", device="cpu")
    assert together(2, program, folder / "there", slow=SLOW) == plain
    assert races(folder / "there") == []


def test_hugging_faces_trainer_trains_as_on_the_cpu_and_is_clean() -> None:
    from accelerate.state import AcceleratorState

    quiet()
    plain = huggingface(0, 1, "cpu")
    AcceleratorState._reset_state(reset_partial_state=True)
    with story(mm=50) as told:
        assert huggingface(0, 1, "cuda") == plain
    assert told.races == []


@pytest.mark.wide
def test_hugging_faces_trainer_on_two_ranks_does(tmp_path: Path) -> None:
    warm("transformers.trainer")
    check(huggingface, tmp_path)


@pytest.mark.wide
def test_accelerate_on_two_ranks_trains_as_on_the_cpu_and_is_clean(tmp_path: Path) -> None:
    warm("accelerate")
    check(accelerated, tmp_path)


def test_lightning_is_clean_on_one_gpu_but_does_not_wait_for_the_stream_of_its_ddp(tmp_path: Path) -> None:
    """A finding in Lightning 2.6.6: ``DDPStrategy._setup_model`` makes DistributedDataParallel under a stream of its
    own, on which DDP sends rank 0's parameters to all, and nobody waits for that stream before the first forward pass
    on the default one. See docs/results/found.md."""
    quiet()
    warm("lightning.pytorch")

    def without(rank: int, world: int, device: str) -> Any:
        return lit(rank, world, device, waits=False)

    together(2, without, tmp_path)
    pairs = {
        tuple((side.kernel, side.stack[0].function) for side in (race.first, race.second)) for race in races(tmp_path)
    }
    step = "lit.<locals>.Module.training_step"
    sent = ("aten::copy_", "_sync_params_and_buffers")
    assert pairs == {(sent, ("aten::addmm", step)), (sent, ("aten::mm", f"{step} (backward)"))}

    plain = lit(0, 1, "cpu")
    with story(addmm=50) as told:
        assert lit(0, 1, "cuda") == plain
    assert told.races == []


@pytest.mark.wide
def test_with_that_wait_lightnings_ddp_trains_as_on_the_cpu_and_is_clean(tmp_path: Path) -> None:
    warm("lightning.pytorch")
    check(lit, tmp_path)

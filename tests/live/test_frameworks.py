"""The watch in real frameworks: Hugging Face's Trainer (plain, ZeRO-3 with hpZ) and Lightning (plain, DDP)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.data import default_data_collator

from streamrace.detectors import BadValue, Cause, Finding, Kind, WatchError, WatchFailed
from streamrace.detectors.live import huggingface, lightning, patches
from streamrace.device.ranks.cluster import Rank, run_ranks
from streamrace.device.values import checksum
from streamrace.frameworks.deepspeed import adapter

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("error::streamrace.detectors.live.board.WatchFailed"),
]

ACCUMULATION = 2
STEPS = 5
SPIKE = (3, 2)  # step and micro-batch of what is planted


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Ranks are forked, and a thread pool does not survive that."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Spike(nn.Module):
    """An activation whose output overflows in one forward pass of training."""

    def __init__(self, inner: nn.Module, at: tuple[int, int] | None) -> None:
        super().__init__()
        self.inner = inner
        self.calls = 0
        self.bad = at and (at[0] - 1) * ACCUMULATION + at[1]

    def forward(self, values: Tensor) -> Tensor:
        self.calls += self.training
        values = self.inner(values)
        return values * 1e38 * 1e38 if self.training and self.calls == self.bad else values


def hooks(model: nn.Module) -> int:
    """How many hooks there are: on the model, on torch's optimizers, and where the watch listens."""
    modules = [(one._forward_hooks, one._forward_pre_hooks, one._backward_hooks) for one in model.modules()]
    tensors = [one._backward_hooks or {} for one in model.parameters()]
    everywhere = [
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
        patches._patches,
    ]
    own = [name for name in ("training_step", "manual_backward") if name in vars(model)]
    return sum(len(each) for group in (*modules, tensors, everywhere) for each in group) + len(own)


def where(finding: Finding | None) -> tuple[Any, ...]:
    assert finding is not None
    return finding.cause, finding.kind, finding.module, finding.step, finding.micro_batch, finding.phase


def bits(model: nn.Module) -> dict[str, bytes]:
    return {name: values.view(-1).view(torch.uint8).numpy().tobytes() for name, values in model.state_dict().items()}


# -- Hugging Face ----------------------------------------------------------------------------------


class Unlabelled:
    """Collates; the micro-batches of one step have no labels, so that their mean is over nothing."""

    def __init__(self, step: int) -> None:
        self.calls = 0
        self.bad = range((step - 1) * ACCUMULATION + 1, step * ACCUMULATION + 1)

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        self.calls += 1
        batch: dict[str, Any] = default_data_collator(samples)
        if self.calls in self.bad:
            batch["labels"].fill_(-100)
        return batch


def llama(spike: tuple[int, int] | None = None) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2))
    model.model.layers[1].mlp.act_fn = Spike(model.model.layers[1].mlp.act_fn, spike)
    return model


def tokens() -> list[dict[str, Tensor]]:
    random = torch.Generator().manual_seed(1)
    made = [torch.randint(64, (8,), generator=random) for _ in range(STEPS * ACCUMULATION * 4)]
    return [{"input_ids": one, "labels": one} for one in made]


def trainer(folder: Path, model: nn.Module, *callbacks: TrainerCallback, collator: Any = None, **how: Any) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=ACCUMULATION,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **{"logging_strategy": "no", "logging_nan_inf_filter": False, **how},
    )
    return Trainer(model, arguments, train_dataset=tokens(), data_collator=collator, callbacks=list(callbacks))


def test_hf_a_healthy_run_reports_nothing_and_trains_the_same_bits(tmp_path: Path) -> None:
    plain, watched = llama(), llama()
    trainer(tmp_path, plain).train()
    callback = huggingface.NanWatchTrainerCallback(checksums=True)
    originals = GradScaler.scale, GradScaler.update, hooks(watched)
    trainer(tmp_path, watched, callback).train()
    assert callback.finding is None
    assert bits(plain) == bits(watched)
    assert (GradScaler.scale, GradScaler.update, hooks(watched)) == originals


def test_hf_an_overflow_is_found_where_it_is_and_stops_training(tmp_path: Path) -> None:
    callback = huggingface.NanWatchTrainerCallback(on_finding="stop")
    model = llama(SPIKE)
    made = trainer(tmp_path, model, callback)
    before = hooks(model)
    made.train()
    assert where(callback.finding) == (Cause.FORWARD, Kind.OUTPUT, "model.layers.1.mlp.act_fn", *SPIKE, "forward")
    assert made.state.global_step == SPIKE[0]
    assert hooks(model) == before


def test_hf_a_batch_without_labels_is_bad_data(tmp_path: Path) -> None:
    callback = huggingface.NanWatchTrainerCallback()
    trainer(tmp_path, llama(), callback, collator=Unlabelled(2)).train()
    assert where(callback.finding) == (Cause.DATA, Kind.LOSS, "", 2, 1, "forward")


def test_hf_a_trainer_may_train_twice_though_it_raised(tmp_path: Path) -> None:
    callback = huggingface.NanWatchTrainerCallback(on_finding="raise")
    made = trainer(tmp_path, llama(SPIKE), callback)
    with pytest.raises(BadValue, match="Step 3, micro-batch 2"):
        made.train()
    made.model = made.model_wrapped = llama()
    made.callback_handler.model = made.model
    made.optimizer = None
    made.train()
    assert callback.finding is None
    assert hooks(made.model) == 0


def test_hf_the_log_hides_a_nan_and_the_watch_says_so(tmp_path: Path) -> None:
    quiet = {"logging_strategy": "steps", "logging_steps": 1}
    callback = huggingface.NanWatchTrainerCallback()
    made = trainer(tmp_path, llama(), callback, collator=Unlabelled(2), logging_nan_inf_filter=True, **quiet)
    with pytest.warns(UserWarning, match="set logging_nan_inf_filter=False in TrainingArguments to see it"):
        made.train()
    losses = [line["loss"] for line in made.state.log_history if "loss" in line]
    assert len(losses) == STEPS
    assert float(losses[1]) == 0.0  # NaN, it was
    assert callback.finding is not None


def test_hf_without_the_filter_there_is_no_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*logging_nan_inf_filter")
        trainer(tmp_path, llama(), callback := huggingface.NanWatchTrainerCallback()).train()
    assert callback.finding is None


def test_hf_an_unknown_option_is_said_when_training_begins(tmp_path: Path) -> None:
    with pytest.raises(WatchError, match="unknown watch 'losses'"):
        trainer(tmp_path, llama(), huggingface.NanWatchTrainerCallback(watch=["losses"])).train()


# -- Hugging Face with DeepSpeed -------------------------------------------------------------------

ZERO3 = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": ACCUMULATION,
    "train_batch_size": 2 * 2 * ACCUMULATION,
    "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 0},
    "zero_allow_untested_optimizer": True,
}


class Trained(NamedTuple):
    facts: dict[str, Any]


def on_two_ranks(folder: Path, train: Callable[[Rank], dict[str, Any]]) -> list[dict[str, Any]]:
    """What ``train`` gives on each of two ranks, which have gloo and an environment as torchrun's."""
    said: dict[int, dict[str, Any]] = {}

    def target(me: Rank) -> None:
        local = {"LOCAL_RANK": str(me.rank), "LOCAL_SIZE": str(me.world)}
        # The frameworks ask for an address; nobody listens there, the group is made already.
        os.environ.update(
            RANK=str(me.rank), WORLD_SIZE=str(me.world), MASTER_ADDR="localhost", MASTER_PORT="0", **local
        )
        store = dist.FileStore(str(me.store), me.world)
        dist.init_process_group("gloo", store=store, rank=me.rank, world_size=me.world)
        me.report(Trained(train(me)))

    def receive(rank: int, message: Trained) -> None:
        said[rank] = message.facts

    run_ranks(2, target, folder=folder, kinds=(Trained,), receive=receive, silence_s=60)
    return [said[0], said[1]]


class Before(TrainerCallback):
    """What there is before the watch's callback; and what may go wrong."""

    def __init__(self, corrupt: tuple[int, int] | None = None) -> None:
        self.corrupt = corrupt  # after this step, on this rank

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
        self.hooks, self.engine = hooks(model), _engine_functions()

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
        if self.corrupt == (state.global_step, dist.get_rank()):
            model.model.layers[0].mlp.up_proj.weight.ds_tensor.view(-1)[3] += 1


def _engine_functions() -> list[Any]:
    engine = adapter.deepspeed.DeepSpeedEngine
    return [engine.__init__, engine.forward, engine.backward, engine.step]


def zero3(folder: Path, **how: Any) -> list[dict[str, Any]]:
    """``how``: what goes wrong, the options of the watch; nothing to run without it."""
    adapter.warm_up()
    corrupt, spike = how.pop("corrupt", None), how.pop("spike", None)

    def train(me: Rank) -> dict[str, Any]:
        adapter.start(simulated=False)
        before = Before(corrupt)
        callback = huggingface.NanWatchTrainerCallback(**how) if how else None
        model = llama(spike if me.rank == 1 else None)
        made = trainer(folder, model, before, *([callback] if callback else []), deepspeed=ZERO3)
        with warnings.catch_warnings():
            warnings.simplefilter("error", WatchFailed)
            made.train()
        return {
            "finding": callback.finding.as_dict() if callback and callback.finding else None,
            "steps": made.state.global_step,
            "final": {name: checksum(values) for name, values in adapter.trainer(made.deepspeed, None).partitions()},
            "gone": hooks(model) == before.hooks and _engine_functions() == before.engine,
        }

    return on_two_ranks(folder, train)


def test_zero3_and_hpz_in_hf_a_healthy_run_trains_the_same_bits(tmp_path: Path) -> None:
    plain, watched = zero3(tmp_path / "plain"), zero3(tmp_path / "watched", checksums=True, on_finding="stop")
    assert [one["finding"] for one in watched] == [None, None]
    assert [one["final"] for one in watched] == [one["final"] for one in plain]
    assert [one["steps"] for one in watched] == [STEPS, STEPS]
    assert all(one["gone"] for one in watched)


def test_zero3_and_hpz_in_hf_an_overflow_on_one_rank_stops_both_after_the_same_step(tmp_path: Path) -> None:
    said = zero3(tmp_path, spike=(1, 2), on_finding="stop")
    finding = Finding.from_dict(said[0]["finding"])
    assert where(finding) == (Cause.FORWARD, Kind.OUTPUT, "model.layers.1.mlp.act_fn", 1, 2, "forward")
    assert finding.rank == 1
    assert said[0]["finding"] == said[1]["finding"]
    assert said[0]["steps"] == said[1]["steps"] < STEPS
    assert all(one["gone"] for one in said)


def test_zero3_and_hpz_in_hf_a_partition_that_changes_between_steps_is_corruption(tmp_path: Path) -> None:
    """The engine was found, with all that ZeRO-3's hooks see of it."""
    said = zero3(tmp_path, corrupt=(2, 1), checksums=True)
    finding = Finding.from_dict(said[0]["finding"])
    assert (finding.cause, finding.kind, finding.rank, finding.step) == (Cause.CORRUPTION, Kind.PRIMARY, 1, 3)
    assert finding.parameter == "model.layers.0.mlp.up_proj.weight"
    assert said[0]["finding"] == said[1]["finding"]


# -- Lightning -------------------------------------------------------------------------------------

WAYS = ("calls its parts", "calls itself", "optimizes by hand")


class Module(pl.LightningModule):
    """A small regression, written in one of the ways in which such modules are."""

    def __init__(self, way: str, spike: tuple[int, int] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), Spike(nn.Tanh(), spike), nn.Linear(8, 1))
        self.way = way
        self.automatic_optimization = way != "optimizes by hand"

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = self.net(values)
        return result

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor | None:
        values, wanted = batch
        found = self.net(values) if self.way == "calls its parts" else self(values)
        loss = (found - wanted).square().mean()
        if self.automatic_optimization:
            return loss
        self.manual_backward(loss / ACCUMULATION)
        if (batch_idx + 1) % ACCUMULATION == 0:
            optimizer: Any = self.optimizers()
            optimizer.step()
            optimizer.zero_grad()
        return None

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self(batch[0] * torch.nan)  # not trained with, and no affair of the watch

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def points(*, bad: int = -1, seed: int = 0) -> DataLoader[Any]:
    """Micro-batches of two; ``bad``: the micro-batch, from 0, that has a NaN."""
    random = torch.Generator().manual_seed(seed)
    count = STEPS * ACCUMULATION * 2
    made = [(torch.randn(4, generator=random), torch.randn(1, generator=random)) for _ in range(count)]
    if bad >= 0:
        made[2 * bad][0][1] = torch.nan
    return DataLoader(made, batch_size=2)  # type: ignore[arg-type]


def fit(model: Module, *callbacks: pl.Callback, data: Iterable[Any] | None = None, **options: Any) -> pl.Trainer:
    by_hand = {} if model.way == "optimizes by hand" else {"accumulate_grad_batches": ACCUMULATION}
    made = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_epochs=1,
        callbacks=list(callbacks),
        **{**by_hand, **options},
    )
    made.fit(model, data or points(), DataLoader([torch.zeros(1, 4)]))  # type: ignore[arg-type]
    return made


each_way = pytest.mark.parametrize("way", WAYS)


@each_way
def test_lightning_a_healthy_run_reports_nothing_and_trains_the_same_bits(way: str) -> None:
    plain, watched = Module(way), Module(way)
    fit(plain)
    callback = lightning.NanWatchCallback(checksums=True)
    before = hooks(watched)
    fit(watched, callback)
    assert callback.finding is None
    assert bits(plain) == bits(watched)
    assert hooks(watched) == before


@each_way
def test_lightning_an_overflow_is_found_where_it_is_and_stops_training(way: str) -> None:
    callback = lightning.NanWatchCallback(on_finding="stop")
    made = fit(Module(way, SPIKE), callback)
    assert where(callback.finding) == (Cause.FORWARD, Kind.OUTPUT, "net.1", *SPIKE, "forward")
    assert made.global_step == SPIKE[0]


def test_lightning_what_runs_within_the_optimizers_step_is_the_steps_first_micro_batch() -> None:
    callback = lightning.NanWatchCallback(checksums=True)
    fit(Module(WAYS[0], (2, 1)), callback, accumulate_grad_batches=1)
    assert where(callback.finding) == (Cause.FORWARD, Kind.OUTPUT, "net.1", 3, 1, "forward")


@each_way
def test_lightning_a_bad_batch_is_bad_data(way: str) -> None:
    callback = lightning.NanWatchCallback()
    fit(Module(way), callback, data=points(bad=2))
    assert where(callback.finding) == (Cause.DATA, Kind.INPUT, "", 2, 1, "forward")
    assert callback.finding is not None
    assert callback.finding.detail == "batch.0"


def test_lightning_a_bound_is_compared_with_the_loss_before_it_is_divided() -> None:
    """What is accumulated is divided: on_before_backward would give half of it."""
    first = Module(WAYS[0]).training_step(next(iter(points())), 0)
    assert first is not None
    callback = lightning.NanWatchCallback(watch="loss", bound={"loss": first.item() * 0.75})
    fit(Module(WAYS[0]), callback)
    assert where(callback.finding)[1:5] == (Kind.LOSS, "", 1, 1)


def test_lightning_when_training_raises_all_hooks_go() -> None:
    def broken() -> Iterator[Any]:
        yield from list(points())[:3]
        raise OSError("the disk is gone")

    class Broken:
        def __iter__(self) -> Iterator[Any]:
            return broken()

    model = Module(WAYS[0])
    before = hooks(model)
    with pytest.raises(OSError, match="the disk is gone"):
        fit(model, lightning.NanWatchCallback(checksums=True), data=Broken())
    assert hooks(model) == before


def test_lightning_ddp_a_bad_batch_of_one_rank_stops_both_after_the_same_batch(tmp_path: Path) -> None:
    """DDP calls the module, and the module calls itself: still one micro-batch."""

    def train(me: Rank) -> dict[str, Any]:
        callback = lightning.NanWatchCallback(on_finding="stop")
        strategy = DDPStrategy(process_group_backend="gloo")
        data = points(seed=me.rank, bad=3 if me.rank == 1 else -1)
        made = fit(
            Module("calls itself"), callback, data=data, strategy=strategy, devices=2, use_distributed_sampler=False
        )
        return {
            "finding": callback.finding.as_dict() if callback.finding else None,
            "batches": made.fit_loop.epoch_loop.batch_idx + 1,
        }

    said = on_two_ranks(tmp_path, train)
    finding = Finding.from_dict(said[0]["finding"])
    assert where(finding) == (Cause.DATA, Kind.INPUT, "", 2, 2, "forward")
    assert finding.rank == 1
    assert said[0]["finding"] == said[1]["finding"]
    assert said[0]["batches"] == said[1]["batches"] < STEPS * ACCUMULATION

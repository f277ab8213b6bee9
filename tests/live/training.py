"""Real training on CPU with gloo, in every form that the watch knows, with one thing planted that goes wrong."""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from streamrace.detectors import BadValue, Finding, NanWatch
from streamrace.device.ranks.cluster import Rank, run_ranks

EVERY = -1  # rank
VOCABULARY, WIDTH = 40, 24
WORLDS = {"plain": 1, "ddp": 2, "zero1": 2, "zero2": 2, "zero3": 2, "hpz": 4}
STAGES = {"zero1": 1, "zero2": 2, "zero3": 3, "hpz": 3}


class Explode(torch.autograd.Function):
    """Changes nothing, but the gradient on its way back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


class Block(nn.Module):
    """An MLP behind attention with a mask of -inf."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, WIDTH, bias=False)
        self.masked = Masked()
        self.up = nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        x = x + torch.softmax(self.masked(self.scores(x) @ x.transpose(1, 2)), -1) @ x
        return x + self.down(torch.relu(self.up(x)))


class Masked(nn.Module):
    """-inf on purpose, as the output of a module."""

    def forward(self, scores: Tensor) -> Tensor:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(ahead, -torch.inf)


class Model(nn.Module):
    """Tokens and float features to the next token. ``plant``: what goes wrong inside, now."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.features = nn.Linear(4, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.plant = ""

    def forward(self, input_ids: Tensor, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = self.tokens(input_ids) + self.features(features).unsqueeze(1)
        for index, block in enumerate(self.blocks):
            if index == 1 and self.plant in ("inf gradient", "large gradient"):
                x = Explode.apply(x, torch.inf if self.plant == "inf gradient" else 1e20)
            x = block(x)
            if index == 1 and self.plant == "overflow":
                x = x * torch.finfo(x.dtype).max
        logits = self.head(x)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()), "logits": logits}


@dataclass
class Told:
    """What the ranks said."""

    findings: dict[int, Finding | None] = field(default_factory=dict)
    losses: dict[int, list[float]] = field(default_factory=dict)
    final: dict[int, int] = field(default_factory=dict)
    raised: dict[int, str] = field(default_factory=dict)
    warned: dict[int, list[str]] = field(default_factory=dict)
    more: dict[int, Any] = field(default_factory=dict)

    @property
    def one(self) -> Finding:
        """The finding: the same on every rank, or there is none to speak of."""
        found = set(self.findings.values())
        assert len(found) == 1, found
        finding = found.pop()
        assert finding is not None
        return finding


def train(
    folder: Path,
    form: str,
    *,
    steps: int = 4,
    accumulation: int = 2,
    plant: Callable[[Job], None] | None = None,
    at: tuple[int, int, int] = (3, 1, 0),
    watch: Mapping[str, Any] | None = None,
    precision: str = "fp32",
    clip: float = 0.0,
) -> Told:
    """Train ``form`` and gather what the watch found. ``plant(job)`` is called at the rank, step and micro-batch ``at``
    says (rank, step, micro-batch), before the micro-batch; the job tells where training is.

    ``watch``: arguments of the watch; None trains without one.
    """
    told = Told()

    def receive(rank: int, message: JobEnded) -> None:
        finding = message.finding
        told.findings[rank] = Finding.from_dict(finding) if finding else None
        for name in ("losses", "final", "raised", "warned", "more"):
            getattr(told, name)[rank] = getattr(message, name)

    def target(me: Rank) -> None:
        job = Job(me, form, accumulation, precision, clip)
        job.run(steps, plant, at, watch)

    torch.set_num_threads(1)
    run_ranks(WORLDS[form], target, folder=folder, kinds=(JobEnded,), receive=receive)
    return told


class JobEnded(NamedTuple):
    """What a rank reports at its end."""

    finding: dict[str, Any] | None
    losses: Any
    final: Any
    raised: str
    warned: list[str]
    more: dict[str, Any]


class Job:
    """One rank's training program."""

    def __init__(self, me: Rank, form: str, accumulation: int, precision: str, clip: float) -> None:
        self.me, self.form, self.accumulation = me, form, accumulation
        torch.manual_seed(0)
        self.model = Model()
        self.engine: Any = None
        self.optimizer: torch.optim.Optimizer
        self.wrapped: nn.Module = self.model
        self.scaler = torch.amp.GradScaler("cpu", enabled=precision == "scaled", init_scale=2.0**127)
        self.clip = clip
        self.step, self.micro_batch = 0, 0
        self.more: dict[str, Any] = {}
        self.skipped = 0
        rank, world = str(me.rank), str(me.world)
        os.environ.update(RANK=rank, WORLD_SIZE=world, LOCAL_RANK=rank, LOCAL_SIZE=world)
        if form in STAGES:
            from streamrace.frameworks.deepspeed import adapter

            adapter.start(simulated=False)
        if me.world > 1:
            torch.distributed.init_process_group(
                "gloo",
                store=torch.distributed.FileStore(str(me.store), me.world),
                rank=me.rank,
                world_size=me.world,
                timeout=timedelta(seconds=60),
            )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        if form in STAGES:
            self.engine = adapter.initialize(model=self.model, optimizer=self.optimizer, config=self._config(precision))
            self.wrapped = self.engine
        elif form == "ddp":
            self.wrapped = nn.parallel.DistributedDataParallel(self.model)

    def _config(self, precision: str) -> dict[str, Any]:
        stage = STAGES[self.form]
        zero: dict[str, Any] = {"stage": stage}
        if stage == 3:
            # With DeepSpeed's defaults a model of this size is never released, and hpZ has nothing to do.
            zero |= {
                "stage3_param_persistence_threshold": 30,
                "stage3_prefetch_bucket_size": 2000,
                "stage3_max_live_parameters": 6000,
                "stage3_max_reuse_distance": 1,
                "reduce_bucket_size": 4000,
            }
        if self.form == "hpz":
            zero["zero_hpz_partition_size"] = 2
        config = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": self.accumulation,
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": self.clip,
        }
        if precision == "fp16":
            config["fp16"] = {"enabled": True, "initial_scale_power": 24, "loss_scale_window": 20}
        if precision == "bf16":
            config["bf16"] = {"enabled": True}
        return config

    def parameter(self, name: str) -> Any:
        return dict(self.model.named_parameters())[name]

    def run(
        self,
        steps: int,
        plant: Callable[[Job], None] | None,
        at: tuple[int, int, int],
        watch: Mapping[str, Any] | None,
    ) -> None:
        losses: list[float] = []
        raised = ""
        self.watch: NanWatch | None = None
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            if watch is not None:
                self.watch = NanWatch(self.engine or self.wrapped, **watch)
            try:
                for step, micro_batch in product(range(1, steps + 1), range(1, self.accumulation + 1)):
                    self.step, self.micro_batch = step, micro_batch
                    self.batch = self._batch()
                    self.model.plant = ""
                    here = at[1:] == (step, micro_batch) and at[0] in (self.me.rank, EVERY)
                    if plant is not None and here:
                        plant(self)
                    losses.append(self._micro_batch())
                if self.watch is not None:
                    self.watch.close()
            except BadValue as error:
                raised = str(error)
        finding = self.watch.finding if self.watch is not None else None
        left = hooks_left(self.model)
        self.more = {**(self.more or {}), "skipped": self.skipped, "steps": self._counted(), "left": left}
        self.me.report(
            JobEnded(
                finding=finding.as_dict() if finding else None,
                losses=losses,
                final=self._final() if not raised else 0,
                raised=raised,
                warned=[str(one.message) for one in warned if "detectors" in str(one.category)],
                more=self.more,
            )
        )

    def _batch(self) -> dict[str, Tensor]:
        one = torch.Generator().manual_seed(self.step * 1000 + self.micro_batch * 10 + self.me.rank)
        ids = torch.randint(0, VOCABULARY, (2, 9), generator=one)
        features = torch.randn(2, 4, generator=one)
        features = features.to(self.model.features.weight.dtype)
        return {"input_ids": ids[:, :-1], "features": features, "labels": ids[:, 1:].clone()}

    def _micro_batch(self) -> float:
        if self.engine is not None:
            loss = self.engine(**self.batch)["loss"]
            self.engine.backward(loss)
            self.engine.step()
            self.skipped = self.engine.skipped_steps
            return float(loss)
        loss = self.wrapped(**self.batch)["loss"]
        # The factor is what overflows with the scale that training begins with.
        self.scaler.scale(loss * (8 if self.scaler.is_enabled() else 1) / self.accumulation).backward()
        if self.micro_batch == self.accumulation:
            if self.clip:
                self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            before = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.skipped += self.scaler.get_scale() < before
            self.optimizer.zero_grad()
        return float(loss)

    def _counted(self) -> int:
        return self.watch.steps if self.watch is not None else self.step

    def _final(self) -> int:
        total = 0
        for parameter in self.model.parameters():
            held = getattr(parameter, "ds_tensor", parameter)
            total = zlib.crc32(held.detach().float().contiguous().numpy().tobytes(), total)
        return total


def hooks_left(model: nn.Module) -> int:
    """Hooks of any kind that stand on the model."""
    left = 0
    for module in model.modules():
        left += len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks)
    for parameter in model.parameters():
        with suppress(AttributeError):
            left += len(parameter._backward_hooks or ())
    return left

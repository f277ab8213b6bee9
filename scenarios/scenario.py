"""Defines a scenario: model, sharding, cluster, data, steps, timing. It is checked before any rank starts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator

from streamrace.device.hardware import HardwareTiming, Scale
from streamrace.device.tokens import MOST_PERCENT
from streamrace.frameworks.deepspeed.fixes import Fix
from streamrace.frameworks.deepspeed.releases import KNOWN, PINNED, installed, is_release
from streamrace.scenarios import base, mmlu, mmlu_batches, quantization
from streamrace.scenarios.base import Only, ScenarioError, Training, fitted
from streamrace.scenarios.mmlu_batches import ByteTokenizer
from streamrace.scenarios.models import FULL_SIZE, SIZES, build, parameters
from streamrace.scenarios.sharding import checkpoint_index as checkpoints
from streamrace.scenarios.sharding.strategy import ShardingError, strategy
from streamrace.scenarios.sharding.synchronisations import of_engine, of_rings, synchronisations
from streamrace.trace import untrusted


class Scenario(Training):
    """Stock DeepSpeed ZeRO-3 training of a small model. Field descriptions are the command line's help."""

    model: Literal["llama", "falcon", "mixtral", "convnext"] = Field(
        "llama", description="Model family: llama, falcon, mixtral (experts) or convnext (convolutions)."
    )
    size: Literal["tiny", "small", "odd"] = Field(
        "small", description="Model size: tiny, small, or odd (no parameter divides by the ranks)."
    )
    ranks: int = Field(4, ge=1, le=64, description="Number of ranks (processes).")
    nodes: base.NodeCount = 2
    hpz: base.Hpz = 2
    steps: base.StepCount = 5
    accumulation: base.Accumulation = 2
    micro_batch: base.MicroBatch = 2
    sequence: base.Sequence = 64
    precision: base.Precision = "bf16"
    learning_rate: float = Field(1e-3, gt=0, le=1e9, description="AdamW's learning rate.")
    seed: int = Field(0, ge=0, le=base.MOST_SEED, description="Seed of weights, data and jitter.")
    fix: base.OrderedBy = Fix.STREAM_SYNC
    deepspeed: Annotated[str, Only.DEEPSPEED] = Field(
        PINNED, description=f"DeepSpeed release, unmodified. Tried: {', '.join(KNOWN)}."
    )
    edit_after: Annotated[int, Only.DEEPSPEED] = Field(
        0,
        ge=0,
        le=base.MOST_COUNT,
        description="After this step read a parameter through GatheredParameters, then double it. 0: never.",
    )
    sharding: base.Sharding = ""
    group: base.GroupSize = None
    rings: base.Rings = "torch"
    without: Annotated[tuple[str, ...], Only.ENGINE] = Field(
        (), description="Synchronisations of our engine to leave out (names)."
    )
    clip: float = Field(1.0, ge=0, le=1e30, description="Largest norm of all gradients; 0: no limit.")
    checkpoint_every: Annotated[int, Only.ENGINE] = Field(
        0,
        ge=0,
        le=base.MOST_COUNT,
        description="Save a checkpoint of our own engine to the run's folder after every this many steps, and keep the "
        "last two. 0: never.",
    )
    resume: Annotated[str, Only.ENGINE] = Field(
        "",
        description="Go on from a checkpoint of our own engine: its folder, or that of a run, for its last one. It may "
        "be of another strategy, group or number of ranks; --steps counts from the very beginning.",
    )
    hardware: base.HardwareName = "a100-100gbps"
    stands_for: str = Field(
        "llama-2-7b",
        description="Full-size model whose ratio of computing to communicating the durations keep; 'itself' for none.",
    )
    stands_for_micro_batch: int = Field(
        16, ge=1, le=base.MOST_COUNT, description="Micro-batch of the full-size model (sequence 2048)."
    )
    slow: base.Slow = Field(default_factory=dict)
    jitter: float = Field(
        0.0,
        ge=0,
        le=MOST_PERCENT / 100,
        description="Stretch every kernel and collective at random, by up to this fraction.",
    )
    timing_seed: int = Field(0, ge=0, le=base.MOST_SEED, description="Seed of the jitter.")
    prefetch_bucket: Annotated[int | None, Only.DEEPSPEED] = Field(
        None,
        ge=0,
        le=base.MOST_ELEMENTS,
        description="stage3_prefetch_bucket_size: elements fetched ahead. Default: DeepSpeed's, in proportion.",
    )
    persistence: Annotated[int | None, Only.DEEPSPEED] = Field(
        None,
        ge=0,
        le=base.MOST_ELEMENTS,
        description="stage3_param_persistence_threshold: parameters of up to this many elements stay gathered. "
        "Default: the norms do, as they do in a full-size Llama under DeepSpeed's default.",
    )
    overlap_comm: base.OverlapComm = True
    qwz: base.Qwz = False
    qgz: base.Qgz = False
    words: int | None = Field(
        None,
        ge=ByteTokenizer.vocab_size,
        le=base.MOST_COUNT,
        description="Words of the model's vocabulary. Default: the tokenizer's; with qgZ so many more as divide among "
        "the ranks.",
    )
    frozen: base.Frozen = ()
    checkpointing: base.Checkpointing = False
    watch: Annotated[Literal["off", "on", "weightless", "blocking"], Only.DEEPSPEED] = Field(
        "off",
        description="Run the NaN watch with checksums beside the training; weightless: in no time; blocking: a check "
        "that waits for each value, which hides the race it looks for.",
    )
    data: str = Field(
        "sample", description="MMLU: a folder of its CSV files, 'cais/mmlu' (datasets package), or the sample."
    )

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, options: Any) -> Any:
        """Switch hpZ off by default with our own engine, which refuses it: hpZ is DeepSpeed's."""
        if isinstance(options, Mapping) and options.get("sharding") and "hpz" not in options:
            return {**options, "hpz": 1}
        return options

    def _fits(self) -> None:
        if not is_release(self.deepspeed):
            raise ValueError(f"--deepspeed takes a release, as {PINNED}, not '{self.deepspeed}'")
        if (self.qwz or self.qgz) and self.deepspeed != PINNED:
            raise ValueError(f"qwZ and qgZ are run with DeepSpeed {PINNED} only, not with {self.deepspeed}")
        if self.checkpointing and self.model == "convnext":
            raise ValueError("transformers' ConvNeXt has no gradient checkpointing: leave it out")
        if self.qgz and self.nodes == 1:
            raise ValueError("qgZ needs more than one node: on one, DeepSpeed reduces without quantizing")
        if self.qwz and self.edit_after and self.hpz > 1:
            raise ValueError(
                "an edit has no reference with hpZ and qwZ: the secondary partition is quantized twice, so that hpZ "
                "changes values; choose one of edit_after, hpz and qwz"
            )
        if self.stands_for != "itself" and self.stands_for not in FULL_SIZE:
            raise ValueError(f"unknown full-size model '{self.stands_for}': choose itself, {', '.join(FULL_SIZE)}")

    def _has_one_engine(self) -> None:
        super()._has_one_engine()
        if not self.sharding:
            return
        has = of_engine(strategy(self.sharding)) | (frozenset() if self.rings == "torch" else of_rings())
        try:
            missing = sorted(synchronisations(self.without) - has)
        except ShardingError as error:
            raise ValueError(str(error)) from None
        if missing:
            raise ValueError(f"{self.sharding} has no synchronisation '{missing[0]}': it has {', '.join(sorted(has))}")

    @property
    def vocabulary(self) -> int:
        """Return the words of the model: the tokenizer's, with qgZ padded to a multiple of the ranks.

        Vocabularies are padded everywhere; here only where needed, as padding changes the weights that are drawn.
        """
        if self.words is not None:
            return self.words
        words = ByteTokenizer.vocab_size
        return -(-words // self.ranks) * self.ranks if self.qgz else words

    @property
    def batch(self) -> int:
        """Return the sequences of a step, on all ranks."""
        return self.ranks * self.micro_batch * self.accumulation

    def timing(self) -> HardwareTiming:
        return replace(super().timing(), scale=self._scale(), jitter=self.jitter, seed=self.timing_seed)

    def questions(self, splits: Sequence[str] = mmlu.SPLITS) -> list[mmlu.Question]:
        return mmlu.load(mmlu.SAMPLE if self.data == "sample" else self.data, splits)

    def _scale(self) -> Scale:
        """Return the scale per layer, so that the host's cost of a launch keeps its proportion to a layer's work."""
        if self.stands_for == "itself":
            return Scale()
        full = FULL_SIZE[self.stands_for]
        tokens = self.micro_batch * self.sequence
        full_layer = full.matrix_parameters / full.layers
        full_tokens = self.stands_for_micro_batch * 2048
        return Scale(
            flops=full_layer * full_tokens / (self._layer() * tokens),
            parameter_bytes=full_layer / self._layer(),
            name=f"{self.stands_for}, micro-batch {self.stands_for_micro_batch}, sequence 2048",
        )

    def _layer(self) -> int:
        """Count the elements of one layer's matrices."""
        size = SIZES[self.model, self.size]
        if self.model == "convnext":  # of the second stage: 7 x 7 depthwise, then to four times the width and back
            width = 2 * size.hidden
            return 49 * width + 8 * width * width
        attention = 2 * size.hidden * size.hidden + 2 * size.hidden * size.hidden * size.kv_heads // size.heads
        matrices = 2 if self.model == "falcon" else 3
        return attention + (max(1, size.experts) * matrices * size.intermediate + size.experts) * size.hidden

    def deepspeed_config(self) -> dict[str, Any]:
        """Return the configuration for ``deepspeed.initialize``.

        DeepSpeed's defaults in proportion to Llama-2-7B: with the absolute defaults a small model is never released
        after use, nothing is fetched again, and hpZ has nothing to do. Buckets are in proportion to a layer; the limits
        of live parameters and of reuse in proportion to the model (but a layer fits).
        """
        full = FULL_SIZE["llama-2-7b"]
        model = parameters(self.model, self.size, vocab_size=self.vocabulary) / full.parameters
        layer = self._layer() * full.layers / full.matrix_parameters
        size = SIZES[self.model, self.size]
        prefetch = round(5e7 * layer) if self.prefetch_bucket is None else self.prefetch_bucket
        zero = {
            "stage": 3,
            "overlap_comm": self.overlap_comm,
            "contiguous_gradients": True,
            "reduce_bucket_size": round(5e8 * layer),
            "stage3_prefetch_bucket_size": prefetch,
            "stage3_max_reuse_distance": round(1e9 * model),
            "stage3_max_live_parameters": max(self._layer(), round(1e9 * model)),
            "stage3_param_persistence_threshold": size.hidden if self.persistence is None else self.persistence,
            "zero_hpz_partition_size": self.hpz,
            **quantization.options(qwz=self.qwz, qgz=self.qgz),
        }
        return self._deepspeed_config(zero, clip=self.clip)

    def check(self) -> None:
        """Check for all errors that are detectable before a rank starts. Raises :class:`ScenarioError`."""
        version = installed()
        if version is None:
            raise ScenarioError("DeepSpeed is not installed: run 'make setup'")
        if version != self.deepspeed:
            raise ScenarioError(f"this is DeepSpeed {version}, and the scenario is for {self.deepspeed}")
        if version != PINNED and self.fix is not Fix.STREAM_SYNC:
            raise ScenarioError(f"DeepSpeed {version} runs as it was released: --fix is for {PINNED}")
        self.profile()
        try:
            questions = self.questions()
        except mmlu.DataError as error:
            raise ScenarioError(str(error)) from error
        mmlu_batches.batches(
            questions, sequence=self.sequence, micro_batch=self.micro_batch, rank=0, world=self.ranks, seed=self.seed
        )
        if self.frozen or self.qwz or self.qgz:
            try:
                model = build(self.model, self.size, vocab_size=self.vocabulary, seed=self.seed, frozen=self.frozen)
            except ValueError as error:
                raise ScenarioError(str(error)) from error
            reason = quantization.refusal(model.named_parameters(), ranks=self.ranks, qwz=self.qwz, qgz=self.qgz)
            if reason is not None:
                raise ScenarioError(reason)
        if self.resume:
            try:
                self._check_checkpoint()
            except ShardingError as error:
                raise ScenarioError(str(error)) from None

    def _check_checkpoint(self) -> None:
        """Check what each rank would check, and that the data can continue where they stopped."""
        folder = checkpoints.newest(Path(self.resume))
        index = checkpoints.read(folder)
        model = build(self.model, self.size, vocab_size=self.vocabulary, seed=self.seed, frozen=self.frozen)
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        index.refuse_other(folder, checkpoints.forms(model, dtype), "AdamW")
        if index.step >= self.steps:
            raise ShardingError(f"{folder} has done {index.step} steps already: give more --steps than that")
        of_run = folder.parent.parent / "scenario.json"  # missing for a checkpoint that was moved elsewhere
        before = load(of_run) if of_run.is_file() else self
        if before.batch != self.batch:
            raise ShardingError(
                f"a step of {folder} has {before.batch} sequences, and here {self.batch}: choose ranks, --micro-batch "
                f"and --accumulation whose product is {before.batch}"
            )


def scenario(**options: Any) -> Scenario:
    """Build a scenario from options; raise :class:`ScenarioError` with one sentence when they do not fit."""
    return fitted(Scenario, options)


def save(chosen: Scenario, path: Path) -> None:
    path.write_text(json.dumps(chosen.model_dump(mode="json"), indent=2) + "\n", encoding="utf-8")


def load(path: Path) -> Scenario:
    """Read a file of :func:`save`. Raises :class:`ScenarioError`."""
    try:
        options = untrusted.read_json(path)
    except OSError as error:
        raise ScenarioError(f"{path} is not a scenario: {error.strerror or error}") from error
    except untrusted.Unreadable as error:
        raise ScenarioError(f"{path} is not a scenario: {error}") from None
    if not isinstance(options, dict):
        raise ScenarioError(f"{path} is not a scenario: it holds no options")
    return scenario(**options)

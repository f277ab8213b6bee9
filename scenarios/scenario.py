"""What to run: model, sharding, cluster, data, steps, timing. One value per run, checked before any rank starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from frameworks.deepspeed.fixes import Fix
from frameworks.deepspeed.releases import KNOWN, PINNED, installed
from scenarios import mmlu, mmlu_batches, quantized
from scenarios.mmlu_batches import ByteTokenizer
from scenarios.models import FULL_SIZE, SIZES, build, parameters
from scenarios.sharding import checkpoint_index as checkpoints
from scenarios.sharding.options import check_options
from scenarios.sharding.strategy import ShardingError, strategy
from scenarios.sharding.synchronisations import of_engine, of_rings, synchronisations
from simgpu.hardware import Profile, ProfileError, Scale, Timing, load_profile

Model = TypeVar("Model", bound=BaseModel)
# What only DeepSpeed does, or needs it.
_DEEPSPEEDS = (
    "hpz", "fix", "deepspeed", "edit_after", "prefetch_bucket", "persistence", "overlap_comm", "qwz", "qgz",
    "checkpointing", "watch",
)  # fmt: skip
# What only our own engine does.
_OURS = ("without", "group", "rings", "checkpoint_every", "resume")


class ScenarioError(Exception):
    """A scenario that cannot be run. One sentence: what is wrong, and what to do."""


class Scenario(BaseModel):
    """Stock DeepSpeed ZeRO-3 training of a small model. Field descriptions are the command line's help."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Literal["llama", "falcon"] = Field("llama", description="Model family: llama or falcon.")
    size: Literal["tiny", "small", "odd"] = Field(
        "small", description="Model size: tiny, small, or odd (no parameter divides by the ranks)."
    )
    ranks: int = Field(4, ge=1, le=64, description="Number of ranks (processes).")
    nodes: int = Field(2, ge=1, description="Number of nodes; ranks are spread over them evenly.")
    hpz: int = Field(2, ge=1, description="hpZ group size (zero_hpz_partition_size); 1 switches hpZ off.")
    steps: int = Field(5, ge=1, description="Optimizer steps.")
    accumulation: int = Field(2, ge=1, description="Micro-batches per optimizer step.")
    micro_batch: int = Field(2, ge=1, description="Sequences per micro-batch and rank.")
    sequence: int = Field(64, ge=8, description="Tokens per sequence.")
    precision: Literal["bf16", "fp32"] = Field("bf16", description="bf16 or fp32.")
    learning_rate: float = Field(1e-3, gt=0, description="AdamW's learning rate.")
    seed: int = Field(0, description="Seed of weights, data and jitter.")
    fix: Fix = Field(
        Fix.STREAM_SYNC,
        description="What orders the secondary copy before its all-gather: none, stream-sync (stock DeepSpeed), "
        "event (the all-gather stream waits, the host does not), device-sync, or another place (make placements).",
    )
    deepspeed: str = Field(PINNED, description=f"DeepSpeed release, run as it was released. Known: {', '.join(KNOWN)}.")
    edit_after: int = Field(
        0, ge=0, description="After this step look at a parameter through GatheredParameters, then double it. 0: never."
    )
    sharding: str = Field(
        "",
        description="Train with our own engine instead of DeepSpeed, under this strategy: three letters of N, I, G for "
        "parameters, gradients and optimizer state (IIG), or a name (PaRO-IIG, ZeRO-2).",
    )
    group: int | None = Field(None, ge=1, description="Ranks of a group, within which I shards. Default: a node's.")
    rings: Literal["torch", "flat", "hierarchical", "ho-ring"] = Field(
        "torch",
        description="Collectives of all ranks in our own engine: torch's, or rings by hand of point-to-point sends.",
    )
    without: tuple[str, ...] = Field((), description="Synchronisations of our engine that are taken away (names).")
    clip: float = Field(1.0, ge=0, description="Largest norm of all gradients; 0: any.")
    checkpoint_every: int = Field(
        0,
        ge=0,
        description="Save a checkpoint of our own engine to the run's folder after every so many steps, and keep the "
        "last two. 0: never.",
    )
    resume: str = Field(
        "",
        description="Go on from a checkpoint of our own engine: its folder, or that of a run, for its last one. It may "
        "be of another strategy, group or number of ranks; --steps counts from the very beginning.",
    )
    hardware: str = Field(
        "a100-100gbps", description="Hardware profile that gives the durations: a name, or a .toml file of your own."
    )
    stands_for: str = Field(
        "llama-2-7b",
        description="Full-size model whose ratio of computing to communicating the durations keep; 'itself' for none.",
    )
    stands_for_micro_batch: int = Field(16, ge=1, description="Micro-batch of the full-size model (sequence 2048).")
    slow: dict[str, float] = Field(
        default_factory=dict,
        description="Stretch durations, PATTERN=FACTOR: stream:compute=20, kernel:aten::copy_=5, 'link:nccl*=3', "
        "rank:1=2, host=4.",
    )
    jitter: float = Field(0.0, ge=0, description="Stretch every kernel and collective by up to this part, at random.")
    timing_seed: int = Field(0, description="Seed of the jitter.")
    prefetch_bucket: int | None = Field(
        None,
        ge=0,
        description="stage3_prefetch_bucket_size: elements fetched ahead. Default: DeepSpeed's, in proportion.",
    )
    persistence: int | None = Field(
        None,
        ge=0,
        description="stage3_param_persistence_threshold: parameters of up to so many elements stay gathered. "
        "Default: the norms do, as they do in a full-size Llama under DeepSpeed's default.",
    )
    overlap_comm: bool = Field(True, description="DeepSpeed's overlap_comm.")
    qwz: bool = Field(False, description="Quantize weights for the all-gather (zero_quantized_weights).")
    qgz: bool = Field(False, description="Quantize gradients for the reduction (zero_quantized_gradients).")
    words: int | None = Field(
        None,
        ge=ByteTokenizer.vocab_size,
        description="Words of the model's vocabulary. Default: the tokenizer's; with qgZ so many more as divide among "
        "the ranks.",
    )
    frozen: tuple[str, ...] = Field((), description="Parameters that are not trained (patterns of names).")
    checkpointing: bool = Field(False, description="Gradient checkpointing.")
    watch: Literal["off", "on", "weightless", "blocking"] = Field(
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
        """hpZ is DeepSpeed's: with our own engine it is off unless somebody asks for it, and is told no."""
        if isinstance(options, Mapping) and options.get("sharding") and "hpz" not in options:
            return {**options, "hpz": 1}
        return options

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.ranks % self.nodes:
            raise ValueError(
                f"{self.ranks} ranks cannot be spread evenly over {self.nodes} nodes: choose nodes that divide them"
            )
        if self.ranks % self.hpz:
            raise ValueError(
                f"an hpZ group of {self.hpz} does not divide {self.ranks} ranks: choose one of "
                f"{', '.join(str(n) for n in range(1, self.ranks + 1) if self.ranks % n == 0)}"
            )
        if (self.qwz or self.qgz) and self.deepspeed != PINNED:
            raise ValueError(f"qwZ and qgZ are run with DeepSpeed {PINNED} only, not with {self.deepspeed}")
        if self.qgz and self.nodes == 1:
            raise ValueError("qgZ needs more than one node: on one, DeepSpeed reduces without quantizing")
        if self.qwz and self.edit_after and self.hpz > 1:
            raise ValueError(
                "an edit has no reference with hpZ and qwZ: the secondary partition is quantized twice, so that hpZ "
                "changes values; choose one of edit_after, hpz and qwz"
            )
        if self.stands_for != "itself" and self.stands_for not in FULL_SIZE:
            raise ValueError(f"unknown full-size model '{self.stands_for}': choose itself, {', '.join(FULL_SIZE)}")
        check_slow(self.slow)
        theirs = {name: Scenario.model_fields[name].default for name in _DEEPSPEEDS} | {"hpz": 1}
        check_options(
            self, sharding=self.sharding, ours=_OURS, theirs=theirs, ranks=self.ranks, group=self.sharding_group
        )
        if self.sharding:
            self._has_waits()
        return self

    def _has_waits(self) -> None:
        here = of_engine(strategy(self.sharding)) | (frozenset() if self.rings == "torch" else of_rings())
        try:
            missing = sorted(synchronisations(self.without) - here)
        except ShardingError as error:
            raise ValueError(str(error)) from None
        if missing:
            raise ValueError(f"{self.sharding} has no synchronisation '{missing[0]}': it has {', '.join(sorted(here))}")

    @property
    def sharding_group(self) -> int:
        """Ranks of a group of our own engine."""
        return self.group or self.ranks // self.nodes

    @property
    def vocabulary(self) -> int:
        """Words of the model: those of the tokenizer, and with qgZ as many more as divide them among the ranks.

        Vocabularies are padded everywhere; here only where it is needed, as it changes the weights that are drawn.
        """
        if self.words is not None:
            return self.words
        words = ByteTokenizer.vocab_size
        return -(-words // self.ranks) * self.ranks if self.qgz else words

    def profile(self) -> Profile:
        return load_profile(self.hardware)

    @property
    def batch(self) -> int:
        """Sequences of a step, on all ranks."""
        return self.ranks * self.micro_batch * self.accumulation

    def timing(self) -> Timing:
        """What decides durations in this run."""
        per_node = self.ranks // self.nodes
        return Timing(
            profile=self.profile(),
            nodes_of=tuple(rank // per_node for rank in range(self.ranks)),
            scale=self._scale(),
            slow=self.slow,
            jitter=self.jitter,
            seed=self.timing_seed,
        )

    def questions(self) -> list[mmlu.Question]:
        return mmlu.load(mmlu.SAMPLE if self.data == "sample" else self.data)

    def _scale(self) -> Scale:
        """Layer by layer: so a launch still costs the host what it does in front of the full layer."""
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
        """Elements of one layer's matrices."""
        size = SIZES[self.model, self.size]
        attention = 2 * size.hidden * size.hidden + 2 * size.hidden * size.hidden * size.kv_heads // size.heads
        return attention + (3 if self.model == "llama" else 2) * size.hidden * size.intermediate

    def deepspeed_config(self) -> dict[str, Any]:
        """What ``deepspeed.initialize`` gets.

        DeepSpeed's defaults in proportion to Llama-2-7B, as with its absolute ones a small model is never
        released after use, nothing is fetched again, and hpZ has nothing to do: buckets in proportion to
        a layer; what may be gathered at once, and for how long, in proportion to the model (but a layer fits).
        """
        full = FULL_SIZE["llama-2-7b"]
        model = parameters(self.model, self.size, vocab_size=self.vocabulary) / full.parameters
        layer = self._layer() * full.layers / full.matrix_parameters
        size = SIZES[self.model, self.size]
        prefetch = round(5e7 * layer) if self.prefetch_bucket is None else self.prefetch_bucket
        return {
            **quantized.communication(qgz=self.qgz),
            "train_micro_batch_size_per_gpu": self.micro_batch,
            "gradient_accumulation_steps": self.accumulation,
            "gradient_clipping": self.clip,
            "bf16": {"enabled": self.precision == "bf16"},
            "zero_optimization": {
                "stage": 3,
                "overlap_comm": self.overlap_comm,
                "contiguous_gradients": True,
                "reduce_bucket_size": round(5e8 * layer),
                "stage3_prefetch_bucket_size": prefetch,
                "stage3_max_reuse_distance": round(1e9 * model),
                "stage3_max_live_parameters": max(self._layer(), round(1e9 * model)),
                "stage3_param_persistence_threshold": size.hidden if self.persistence is None else self.persistence,
                "zero_hpz_partition_size": self.hpz,
                **quantized.options(qwz=self.qwz, qgz=self.qgz),
            },
        }

    def check(self) -> None:
        """Everything that can be known to be wrong before a rank starts. Raises :class:`ScenarioError`."""
        found = installed()
        if found is None:
            raise ScenarioError("DeepSpeed is not installed: run 'make setup'")
        if found not in KNOWN:
            raise ScenarioError(f"DeepSpeed {found} is not known to work here: install {PINNED} ('make setup')")
        if found != self.deepspeed:
            raise ScenarioError(f"this is DeepSpeed {found}, and the scenario is for {self.deepspeed}")
        if found != PINNED and self.fix is not Fix.STREAM_SYNC:
            raise ScenarioError(f"DeepSpeed {found} runs as it was released: --fix is for {PINNED}")
        try:
            self.profile()
            questions = self.questions()
        except (ProfileError, mmlu.DataError) as error:
            raise ScenarioError(str(error)) from error
        mmlu_batches.batches(
            questions, sequence=self.sequence, micro_batch=self.micro_batch, rank=0, world=self.ranks, seed=self.seed
        )
        if self.frozen or self.qwz or self.qgz:
            try:
                model = build(self.model, self.size, vocab_size=self.vocabulary, seed=self.seed, frozen=self.frozen)
            except ValueError as error:
                raise ScenarioError(str(error)) from error
            reason = quantized.refusal(model.named_parameters(), ranks=self.ranks, qwz=self.qwz, qgz=self.qgz)
            if reason is not None:
                raise ScenarioError(reason)
        if self.resume:
            try:
                self._check_checkpoint()
            except ShardingError as error:
                raise ScenarioError(str(error)) from None

    def _check_checkpoint(self) -> None:
        """What each rank would find out for itself, and that the data can go on where they were."""
        folder = checkpoints.newest(Path(self.resume))
        index = checkpoints.read(folder)
        model = build(self.model, self.size, vocab_size=self.vocabulary, seed=self.seed, frozen=self.frozen)
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        index.refuse_other(folder, checkpoints.forms(model, dtype), "AdamW")
        if index.step >= self.steps:
            raise ShardingError(f"{folder} has done {index.step} steps already: give more --steps than that")
        of_run = folder.parent.parent / "scenario.json"  # a checkpoint that was put elsewhere has none
        before = load(of_run) if of_run.is_file() else self
        if before.batch != self.batch:
            raise ShardingError(
                f"a step of {folder} has {before.batch} sequences, and here {self.batch}: choose ranks, --micro-batch "
                f"and --accumulation whose product is {before.batch}"
            )


def check_slow(slow: Mapping[str, float]) -> None:
    """Raises ValueError for what :class:`simgpu.hardware.Timing` cannot stretch."""
    for pattern, factor in slow.items():
        if not pattern.startswith(("stream:", "kernel:", "link:", "rank:", "host")):
            raise ValueError(f"slow pattern '{pattern}' must begin with stream:, kernel:, link:, rank: or host")
        if not factor > 0:
            raise ValueError(f"slow factor of '{pattern}' must be above 0, not {factor}")


def scenario(**options: Any) -> Scenario:
    """A scenario from options; :class:`ScenarioError` with one sentence when they do not fit."""
    return fitted(Scenario, options)


def fitted(model: type[Model], options: Mapping[str, Any]) -> Model:
    """What the options say; :class:`ScenarioError` with one sentence when they do not fit."""
    try:
        return model(**options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ScenarioError(f"{where + ': ' if where else ''}{message}") from None


def save(chosen: Scenario, path: Path) -> None:
    path.write_text(json.dumps(chosen.model_dump(mode="json"), indent=2) + "\n", encoding="utf-8")


def load(path: Path) -> Scenario:
    """Read what :func:`save` wrote. Raises :class:`ScenarioError`."""
    try:
        options = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{path} is not a scenario: {error}") from error
    if not isinstance(options, dict):
        raise ScenarioError(f"{path} is not a scenario: it holds no options")
    return scenario(**options)

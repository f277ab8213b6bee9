"""Defines what a scenario and a job share: fields with descriptions and bounds, and checks of their combinations.

Both classes list the fields themselves, with their own defaults: pydantic puts inherited fields first, and the order of
the fields is that of the help, of the files and of the tokens, which may not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from streamrace.device.hardware import HardwareTiming, Profile, ProfileError, load_profile
from streamrace.device.tokens import MOST_FACTOR
from streamrace.frameworks.deepspeed.fixes import Fix
from streamrace.scenarios import quantization
from streamrace.scenarios.faults import ScenarioError as ScenarioError
from streamrace.scenarios.sharding.strategy import ShardingError, strategy
from streamrace.scenarios.sharding.topology import groups_of

Model = TypeVar("Model", bound=BaseModel)


class Only(Enum):
    """Marks a field that only one of the two engines knows; with the other engine the field is refused."""

    DEEPSPEED = "DeepSpeed"
    ENGINE = "our own engine"


# No job comes near these. Beyond them a run does not end, or computed figures overflow.
MOST_RANKS = 2**20
MOST_COUNT = 10**6  # of steps, micro-batches, sequences, tokens
MOST_ELEMENTS = 2**40
MOST_SEED = 2**63 - 1  # torch's
LEAST_GBITS, MOST_GBITS = 1e-6, 1e9

NodeCount = Annotated[
    int, Field(ge=1, le=MOST_RANKS, description="Number of nodes; ranks are spread over them evenly.")
]
Hpz = Annotated[
    int,
    Field(ge=1, le=MOST_RANKS, description="hpZ group size (zero_hpz_partition_size); 1 switches hpZ off."),
    Only.DEEPSPEED,
]
StepCount = Annotated[int, Field(ge=1, le=MOST_COUNT, description="Optimizer steps.")]
Accumulation = Annotated[int, Field(ge=1, le=MOST_COUNT, description="Micro-batches per optimizer step.")]
MicroBatch = Annotated[int, Field(ge=1, le=MOST_COUNT, description="Sequences per micro-batch and GPU.")]
Sequence = Annotated[int, Field(ge=8, le=MOST_COUNT, description="Tokens per sequence.")]
Precision = Annotated[Literal["bf16", "fp32"], Field(description="bf16 or fp32.")]
HardwareName = Annotated[
    str, Field(description="Hardware profile that gives the durations: a name, or your own .toml file.")
]
Slow = Annotated[
    dict[str, float],
    Field(
        description="Stretch durations, PATTERN=FACTOR: stream:compute=20, kernel:aten::copy_=5, 'link:nccl*=3', "
        "rank:1=2, host=4."
    ),
]
OrderedBy = Annotated[
    Fix,
    Field(
        description="Order between the secondary copy and its all-gather: none, stream-sync (stock DeepSpeed), event "
        "(the all-gather stream waits, the host does not), device-sync, or another place (make placements)."
    ),
    Only.DEEPSPEED,
]
Sharding = Annotated[
    str,
    Field(
        description="Train with our own engine instead of DeepSpeed, under this strategy: three letters of N, I, G for "
        "parameters, gradients and optimizer state (IIG), or a name (PaRO-IIG, ZeRO-2)."
    ),
]
GroupSize = Annotated[
    int | None,
    Field(ge=1, le=MOST_RANKS, description="Ranks of a group, within which I shards. Default: a node's."),
    Only.ENGINE,
]
Rings = Annotated[
    Literal["torch", "flat", "hierarchical", "ho-ring"],
    Field(description="Collectives of all ranks in our own engine: torch's, or our rings of point-to-point sends."),
    Only.ENGINE,
]
Frozen = Annotated[tuple[str, ...], Field(description="Parameters that are not trained (patterns of names).")]
OverlapComm = Annotated[bool, Field(description="DeepSpeed's overlap_comm."), Only.DEEPSPEED]
Qwz = Annotated[
    bool, Field(description="Quantize weights for the all-gather (zero_quantized_weights)."), Only.DEEPSPEED
]
Qgz = Annotated[
    bool, Field(description="Quantize gradients for the reduction (zero_quantized_gradients)."), Only.DEEPSPEED
]
Checkpointing = Annotated[bool, Field(description="Gradient checkpointing.")]


class Training(BaseModel):
    """A training run that can be described before anything starts. Field descriptions are the command line's help."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    _ranks_are: ClassVar[str] = "ranks"

    if TYPE_CHECKING:  # fields of both, see above
        nodes: int
        hpz: int
        micro_batch: int
        accumulation: int
        precision: str
        hardware: str
        slow: dict[str, float]
        sharding: str
        group: int | None
        qgz: bool

        @property
        def ranks(self) -> int: ...

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.ranks > MOST_RANKS:
            raise ValueError(f"{self.ranks} {self._ranks_are} are more than {MOST_RANKS}: choose fewer nodes")
        if self.ranks % self.nodes:
            raise ValueError(
                f"{self.ranks} ranks cannot be spread evenly over {self.nodes} nodes: choose nodes that divide them"
            )
        if self.ranks % self.hpz:
            raise ValueError(
                f"an hpZ group of {self.hpz} does not divide {self.ranks} {self._ranks_are}: choose one of "
                f"{', '.join(str(n) for n in range(1, self.ranks + 1) if self.ranks % n == 0)}"
            )
        self._fits()
        for pattern, factor in self.slow.items():
            if not pattern.startswith(("stream:", "kernel:", "link:", "rank:", "host")):
                raise ValueError(f"slow pattern '{pattern}' must begin with stream:, kernel:, link:, rank: or host")
            if not factor > 0:
                raise ValueError(f"slow factor of '{pattern}' must be above 0, not {factor}")
            if factor > MOST_FACTOR:
                raise ValueError(f"slow factor of '{pattern}' must be at most {MOST_FACTOR:,}, not {factor:g}")
        self._has_one_engine()
        return self

    def _fits(self) -> None:
        """Check the class's other combinations. Raises ValueError."""

    def _has_one_engine(self) -> None:
        """Check that DeepSpeed's options come without a strategy, those of our own engine with one."""
        foreign = Only.DEEPSPEED if self.sharding else Only.ENGINE
        for name, field in type(self).model_fields.items():
            usual = 1 if name == "hpz" else field.default
            if foreign not in field.metadata or getattr(self, name) == usual:
                continue
            option = f"--{name.replace('_', '-')}"
            if self.sharding:
                raise ValueError(f"{option} is DeepSpeed's, and --sharding does without DeepSpeed: leave one out")
            raise ValueError(f"{option} is of our own engine: name a strategy too, --sharding IIG for one")
        if self.sharding:
            try:
                strategy(self.sharding)
                groups_of(self.ranks, self.sharding_group)
            except ShardingError as error:
                raise ValueError(str(error)) from None

    @property
    def sharding_group(self) -> int:
        """Return the ranks of a group of our own engine."""
        return self.group or self.ranks // self.nodes

    def profile(self) -> Profile:
        """Load the hardware profile. Raises :class:`ScenarioError`."""
        try:
            return load_profile(self.hardware)
        except ProfileError as error:
            raise ScenarioError(str(error)) from error

    def timing(self) -> HardwareTiming:
        """Return the durations of this run."""
        per_node = self.ranks // self.nodes
        return HardwareTiming(
            profile=self.profile(), nodes_of=tuple(rank // per_node for rank in range(self.ranks)), slow=self.slow
        )

    def _deepspeed_config(self, zero: Mapping[str, Any], *, clip: float = 1.0) -> dict[str, Any]:
        """Return the configuration for ``deepspeed.initialize``. ``zero``: its ``zero_optimization``."""
        return {
            **quantization.communication(qgz=self.qgz),
            "train_micro_batch_size_per_gpu": self.micro_batch,
            "gradient_accumulation_steps": self.accumulation,
            "gradient_clipping": clip,
            "bf16": {"enabled": self.precision == "bf16"},
            "zero_optimization": dict(zero),
        }


def fitted(model: type[Model], options: Mapping[str, Any]) -> Model:
    """Build a model from ``options``; raise :class:`ScenarioError` with one sentence when they do not fit."""
    try:
        return model(**options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ScenarioError(f"{where + ': ' if where else ''}{message}") from None

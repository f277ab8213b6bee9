"""Defines the job of a dry run: a full-size model, a cluster, and a DeepSpeed configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from packaging.version import Version
from pydantic import Field, field_validator

from streamrace.device.hardware import Profile, ProfileError, host_names, load_profile
from streamrace.frameworks.deepspeed.fixes import Fix
from streamrace.frameworks.deepspeed.grafts import Graft
from streamrace.frameworks.deepspeed.releases import KNOWN, PINNED, SYNCHRONISED, is_release
from streamrace.scenarios import base, deepspeed_json, quantization
from streamrace.scenarios.base import Only, ScenarioError, Training, fitted

OPTIMIZERS = ("adam", "adamw")
MEASURED_HOST = "epyc-7003"
"""The host of a predicted step, where nothing else is said: see :func:`predicted`."""
_BATCHES = {"train_micro_batch_size_per_gpu": "micro_batch", "gradient_accumulation_steps": "accumulation"}


class Job(Training):
    """A training job that is to be rehearsed. Field descriptions are the command line's help."""

    _ranks_are: ClassVar[str] = "GPUs"

    model: str = Field(
        "llama-2-7b", description="A full-size model by name, a transformers config.json, or module:function."
    )
    nodes: base.NodeCount = 2
    gpus: int = Field(8, ge=1, le=base.MOST_RANKS, description="GPUs per node.")
    hardware: base.HardwareName = "a100-12.5gbps"
    network: float | None = Field(
        None,
        ge=base.LEAST_GBITS,
        le=base.MOST_GBITS,
        description="Gbit/s between nodes, per node. Default: the hardware profile's.",
    )
    host: str | None = Field(
        None,
        description=f"Processor of the hosts, on which the program's own Python code takes time: "
        f"{', '.join(host_names())}; or none, where it takes no time.",
    )
    stage: Annotated[int, Only.DEEPSPEED] = Field(3, ge=1, le=3, description="ZeRO stage: 1, 2 or 3.")
    hpz: base.Hpz = 1
    qwz: base.Qwz = False
    qgz: base.Qgz = False
    micro_batch: base.MicroBatch = 1
    sequence: base.Sequence = 2048
    accumulation: base.Accumulation = 1
    steps: base.StepCount = Field(
        2,
        description="Optimizer steps; the last is reported, because DeepSpeed records its trace in the first "
        "micro-batch, and prepares for it in the second (with a host and one micro-batch a step: 3).",
    )
    precision: base.Precision = "bf16"
    checkpointing: base.Checkpointing = False
    reentrant: Annotated[bool, Only.DEEPSPEED] = Field(
        False, description="Re-entrant gradient checkpointing, as in transformers up to 4.35."
    )
    loop: Literal["plain", "trainer"] = Field(
        "plain",
        description="The training loop waits for nothing (plain), or reads the loss after each backward pass, as "
        "transformers' Trainer does to check that it is finite.",
    )
    attention: Literal["eager", "sdpa"] = Field("sdpa", description="The model's attention: eager or sdpa (flash).")
    frozen: base.Frozen = ()
    overlap_comm: base.OverlapComm = True
    fix: base.OrderedBy = Fix.STREAM_SYNC
    deepspeed: Annotated[str, Only.DEEPSPEED] = Field(
        PINNED, description=f"DeepSpeed release, unmodified. Tried: {', '.join(KNOWN)}."
    )
    graft: Annotated[Graft, Only.DEEPSPEED] = Field(
        Graft.NONE,
        description="Behaviour of one function taken from another release: none, count-at-forward and "
        "copy-once (of 0.19.8, into 0.13.2 to 0.13.5), count-at-backward and copy-each (the other way round).",
    )
    sharding: base.Sharding = ""
    group: base.GroupSize = None
    rings: base.Rings = "torch"
    config: Annotated[str | None, Only.DEEPSPEED] = Field(
        None, description="Your own DeepSpeed JSON; 'auto' in it is filled from the other options."
    )
    slow: base.Slow = Field(default_factory=dict)

    @field_validator("host")
    @classmethod
    def _no_host(cls, host: str | None) -> str | None:
        return None if host == "none" else host

    def _fits(self) -> None:
        if self.stage != 3 and (self.hpz > 1 or self.qwz or self.qgz):
            raise ValueError("hpZ, qwZ and qgZ are parts of ZeRO-3: leave --stage out")
        if self.reentrant and not self.checkpointing:
            raise ValueError("--reentrant is a kind of gradient checkpointing: add --checkpointing")
        self._is_released()

    def _is_released(self) -> None:
        """Check the options for a release: it runs as released, or without its synchronisation. Raises ValueError."""
        if self.graft.into and self.deepspeed not in self.graft.into:
            raise ValueError(
                f"the graft {self.graft} is for DeepSpeed {', '.join(self.graft.into)}, not for {self.deepspeed}"
            )
        if self.deepspeed == PINNED:
            return
        if not is_release(self.deepspeed):
            raise ValueError(f"--deepspeed takes a release, as {PINNED}, not '{self.deepspeed}'")
        if self.qwz or self.qgz:
            raise ValueError(f"qwZ and qgZ are run with DeepSpeed {PINNED} only, not with {self.deepspeed}")
        fixes = [Fix.STREAM_SYNC]
        if Version(self.deepspeed) >= Version(SYNCHRONISED):
            fixes.append(Fix.NONE)
        if self.fix not in fixes:
            raise ValueError(
                f"--fix {self.fix} is for DeepSpeed {PINNED}: leave it out, as {self.deepspeed} runs as it was released"
                + (", or say --fix none" if Fix.NONE in fixes else "")
            )

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus

    @property
    def ordered_by(self) -> str:
        """Return what orders the secondary copy, in words."""
        if self.deepspeed == PINNED:
            text = f"fix: {self.fix}"
        elif self.fix is Fix.NONE:
            text = f"DeepSpeed {self.deepspeed} without its synchronisation"
        else:
            text = f"DeepSpeed {self.deepspeed} as released"
        return text if self.graft is Graft.NONE else f"{text}, {self.graft}"

    @property
    def machine(self) -> str:
        """Return the hardware profile's name, with what was given in the place of its figures."""
        return machine(self.hardware, self.network, self.host)

    def profile(self) -> Profile:
        profile = super().profile()
        if self.host is not None:
            if self.host not in host_names():
                raise ScenarioError(f"there is no host '{self.host}': choose one of {', '.join(host_names())}")
            profile = profile.on_host(self.host)
        if self.network is None:
            return profile
        described = f"{profile.description}; here one network card of {self.network:g} Gbps per node instead"
        return replace(profile.on_network(self.network), description=described)

    def check(self) -> None:
        """Check for errors that are detectable before a rank starts. Raises :class:`ScenarioError`."""
        self.profile()
        if self.sharding:
            from streamrace.scenarios.models import FULL_SIZE  # here, as it imports transformers

            size = FULL_SIZE.get(self.model)
            if size is not None and size.family == "gpt":
                raise ScenarioError(
                    f"{self.model} multiplies by its embedding's weight outside of the embedding, and our own engine "
                    "gathers what a module owns for that module alone: choose another --model, or leave out --sharding"
                )
        self.deepspeed_config(1)  # with any width: each "auto" has a value, or is refused

    def deepspeed_config(self, hidden: int | None) -> dict[str, Any]:
        """Return the configuration for ``deepspeed.initialize``. ``hidden``: the model's width, where it is known.

        Raises :class:`ScenarioError` for a file that is no configuration, or contradicts an option.
        """
        if self.config is None:
            return self._from_options()
        config = deepspeed_json.read(Path(self.config))
        self._fill(config, hidden)
        return config

    def _from_options(self) -> dict[str, Any]:
        zero: dict[str, Any] = {
            "stage": self.stage,
            "overlap_comm": self.overlap_comm,
            "contiguous_gradients": True,
        }
        if self.stage == 3:
            zero["zero_hpz_partition_size"] = self.hpz
            zero |= quantization.options(qwz=self.qwz, qgz=self.qgz)
        return self._deepspeed_config(zero)

    def _fill(self, config: dict[str, Any], hidden: int | None) -> None:
        """Replace each "auto", as transformers' integration does (``integrations/deepspeed.py``)."""
        settings: dict[str, Any] = {
            **{path: getattr(self, option) for path, option in _BATCHES.items()},
            "gradient_clipping": 1.0,
            "bf16.enabled": self.precision == "bf16",
            "fp16.enabled": False,
            "zero_optimization.zero_hpz_partition_size": self.hpz,
        }
        if hidden is not None:
            settings |= {
                "zero_optimization.reduce_bucket_size": hidden * hidden,
                "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * hidden * hidden),
                "zero_optimization.stage3_param_persistence_threshold": 10 * hidden,
            }
        if config.get("train_batch_size") == "auto":
            del config["train_batch_size"]
        for name in ("optimizer", "scheduler"):
            section = config.get(name)
            if isinstance(section, dict) and "auto" in json.dumps(section):
                section["params"] = {k: v for k, v in section.get("params", {}).items() if v != "auto"}
        for path, value in _walk(config):
            if value == "auto":
                if path not in settings:
                    raise ScenarioError(
                        f"{self.config}: '{path}' is \"auto\", and nothing here says what it is: write a number"
                    )
                _put(config, path, settings[path])
        for path, option in _BATCHES.items():
            if option in self.model_fields_set:
                config.setdefault(path, getattr(self, option))
        if "train_batch_size" not in config:  # else DeepSpeed derives it
            config.setdefault("train_micro_batch_size_per_gpu", self.micro_batch)
        self._agree(config)

    def _agree(self, config: dict[str, Any]) -> None:
        """Check that no given option contradicts the file."""
        zero = config.get("zero_optimization", {})
        for option, path, value in (
            *((option, path, config.get(path)) for path, option in _BATCHES.items()),
            ("precision", "bf16, fp16", _precision(config)),
            ("stage", "zero_optimization.stage", zero.get("stage")),
            ("hpz", "zero_optimization.zero_hpz_partition_size", zero.get("zero_hpz_partition_size", 1)),
            ("qwz", "zero_optimization.zero_quantized_weights", zero.get("zero_quantized_weights", False)),
            ("qgz", "zero_optimization.zero_quantized_gradients", zero.get("zero_quantized_gradients", False)),
        ):
            if option in self.model_fields_set and value is not None and value != getattr(self, option):
                raise ScenarioError(
                    f"--{option.replace('_', '-')} is {getattr(self, option)}, and {self.config} says {value} "
                    f"({path}): leave one of them out"
                )


def machine(hardware: str, network: float | None, host: str | None) -> str:
    """Name a machine: a hardware profile, with what was given in the place of its figures."""
    given = [f"{network:g} Gbit/s between nodes"] if network is not None else []
    given += [f"hosts of {host}"] if host is not None else []
    return f"{hardware} with {' and '.join(given)}" if given else hardware


def job(**options: Any) -> Job:
    """Build a job from options; raise :class:`ScenarioError` with one sentence when they do not fit."""
    made = fitted(Job, options)
    if "steps" in options or _accumulation(options) != 1 or made.profile().call_ns is None:
        return made
    return fitted(Job, {**options, "steps": 3})


def predicted(**options: Any) -> Job:
    """Build a job as :func:`job` does; hosts take time for Python code unless ``host`` or a profile decides it."""
    if options.get("host") is None and _own_price(options) is None:
        options = {**options, "host": MEASURED_HOST}
    return job(**options)


def _own_price(options: Mapping[str, Any]) -> float | None:
    with suppress(ProfileError):  # which the job reports
        return load_profile(options.get("hardware", Job.model_fields["hardware"].default)).call_ns
    return None


def _accumulation(options: Mapping[str, Any]) -> Any:
    own = deepspeed_json.read(Path(options["config"])) if options.get("config") else {}
    number = own.get("gradient_accumulation_steps")
    return number if isinstance(number, int) else options.get("accumulation", 1)


def _precision(config: Mapping[str, Any]) -> str | None:
    """Return the precision that the file sets; None: it sets none."""
    on = {name: section.get("enabled") for name in ("bf16", "fp16") if isinstance(section := config.get(name), dict)}
    return next((name for name, enabled in on.items() if enabled), "fp32") if on else None


def _walk(config: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in config.items():
        path = f"{above}{key}"
        pairs += _walk(value, f"{path}.") if isinstance(value, dict) else [(path, value)]
    return pairs


def _put(config: dict[str, Any], path: str, value: Any) -> None:
    *above, last = path.split(".")
    for part in above:
        config = config[part]
    config[last] = value

"""The options with which a program runs on the simulated GPU, and what is refused of them, for all command lines."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from streamrace.device.dry import World
from streamrace.device.scripts import Program, WrongUse
from streamrace.device.timing import Timing
from streamrace.device.tokens import Stretch, TokenError
from streamrace.trace.files import file_of

NODES = GPUS = 1  # defaults of a dry run; GPUS also of each process
MOST_GPUS = 64
EAGER, AOT_EAGER, AOT_DECOMPOSED, INDUCTOR = "eager", "aot_eager", "aot_eager_decomp_partition", "inductor"
COMPILE = (EAGER, AOT_EAGER, AOT_DECOMPOSED, INDUCTOR)  # values of --compile
HELP = {
    "module": "SCRIPT is a module's name, as for python -m.",
    "ranks": "Start this many ranks of the script, each with a simulated GPU. Dry run: so many of the ranks run "
    "together, equally far apart: one of each stage of a pipeline.",
    "dry": "Run SCRIPT as rank 0 of --nodes x --gpus, on tensors without values.",
    "nodes": f"Dry run: number of nodes. [default: {NODES}]",
    "gpus": f"Simulated GPUs that a process uses. Dry run: GPUs (and ranks) per node. [default: {GPUS}]",
    "hardware": "Dry run: a hardware profile, or a .toml file. [default: a plain model]",
    "network": "Dry run with --hardware: Gbit/s between nodes.",
    "scale_limits": "Scale limits of DeepSpeed, DDP and FSDP1 that the model stays below, so that it runs the code "
    "that a large model runs. SCRIPT is not changed.",
    "compile": f"Run compiled functions as they are written ({EAGER}), as graphs of AOTAutograd ({AOT_EAGER}; "
    f"{AOT_DECOMPOSED}: as inductor decomposes them), or as inductor's code ({INDUCTOR}). [default: {EAGER}]",
    "record": "Also record the work, so that 'streamrace replay' can execute it in other timings.",
}


@dataclass(frozen=True)
class LaunchOptions:
    """A program, and how it runs on the simulated GPU. Raise :class:`WrongUse` for options that exclude each other.

    ``ranks``: number of processes, forked by the launch; 0: the program runs in this process, which may be a
    launcher's rank. ``dry``: the processes run dry, as ranks of that world. ``timing``: deviations from the costs that
    ``slow`` multiplies (:class:`streamrace.device.costs.Costs`). ``trace``: a file, or an existing folder for a trace
    of each rank. ``record``: the traces also contain the operations, so that they can be replayed
    (:mod:`streamrace.device.recording`). ``keep``: bytes of each trace that are kept; the rest goes into parts that a
    reader removes (:mod:`streamrace.trace.parts`); 0: the trace is one file. ``tell_waits``: the traces also contain
    the program's line of each wait. ``without``: places of waits that are left out
    (:mod:`streamrace.device.overrides`). ``seed``: random generators that the program does not seed are seeded, and the
    file ``seeded`` lists them (:mod:`streamrace.device.seeds`). ``scale_limits``: a library's limits are scaled to the
    model (:mod:`streamrace.device.limits`). ``compile``: the way in which compiled functions run
    (:mod:`streamrace.device.compiled`). ``gpus``: devices that each process may use.
    ``rehearsed``: gets the ends of rank 0's steps, and the bytes of memory of a GPU, if the run is dry.
    ``output``: gets all that the forked ranks print, which is folded on the screen then
    (:mod:`streamrace.device.ranks.output`).
    """

    program: Program
    ranks: int = 0
    dry: World | None = None
    timing: Timing = field(default_factory=Timing)
    slow: Mapping[str, float] = field(default_factory=dict)
    trace: Path | None = None
    record: bool = False
    keep: int = 0
    tell_waits: bool = False
    without: Sequence[str] = ()
    seed: bool = False
    seeded: Path | None = None
    scale_limits: bool = False
    compile: str = EAGER
    gpus: int = GPUS
    output: Path | None = None
    rehearsed: Path | None = None

    def __post_init__(self) -> None:
        if self.dry and self.record:
            raise WrongUse("a dry run has no values, and a recording is made of them: leave --dry or --record out")
        if self.dry and launched():
            raise WrongUse("a dry run starts its own processes: say --nodes and --gpus, without a launcher")
        if self.dry and self.ranks and self.dry.ranks % self.ranks:
            raise WrongUse(
                f"--ranks {self.ranks} of {self.dry.ranks} are not equally far apart: name a number of which "
                f"{self.dry.ranks} is a multiple, such as that of the pipeline's stages"
            )
        if self.dry and self.compile == INDUCTOR:
            raise WrongUse(
                f"--compile {INDUCTOR} generates Triton kernels, whose accesses follow from values, and a dry run has "
                f"none: say --compile {AOT_EAGER}, or leave --dry out"
            )
        if self.gpus > MOST_GPUS:
            raise WrongUse(f"--gpus {self.gpus}: a process uses at most {MOST_GPUS} simulated GPUs")
        if self.gpus != GPUS and self.record:
            raise WrongUse("--record takes one GPU for each process: leave --gpus or --record out")
        if self.ranks and launched():
            raise WrongUse(
                "--ranks starts ranks, but this is one already (WORLD_SIZE is set): leave one of the two out"
            )

    @property
    def words(self) -> list[str]:
        """Return the words after ``streamrace device`` that run the program on one rank."""
        scaled = ["--scale-limits"] if self.scale_limits else []
        scaled += ["--compile", self.compile] if self.compile != EAGER else []
        scaled += ["--gpus", str(self.gpus)] if self.gpus != GPUS else []
        return [*scaled, *(["-m"] if self.program.module else []), self.program.name, *self.program.arguments]

    def file(self, rank: int) -> Path | None:
        """Return the file of the rank's trace, if there is to be one."""
        return file_of(self.trace, rank) if self.trace and self.trace.is_dir() else self.trace


def compile_option(name: str) -> str:
    """Return the value of --compile. Raise :class:`WrongUse`."""
    if name not in COMPILE:
        raise WrongUse(f"--compile takes {', '.join(COMPILE[:-1])} or {COMPILE[-1]}, not '{name}'")
    return name


def launched() -> bool:
    """Check whether a launcher, for example torchrun, started this process as one of several ranks."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def whole_timing(timing: Timing, slow: Mapping[str, float]) -> Timing | None:
    """Return both as one timing; None if no token can express ``slow``."""
    if any(factor != int(factor) or factor < 2 for factor in slow.values()):
        return None
    try:
        return Timing((*(Stretch(pattern, int(factor)) for pattern, factor in slow.items()), *timing.deviations))
    except TokenError:
        return None


def dry_world(nodes: int | None, gpus: int | None, hardware: str, network: float | None, *, dry: bool) -> World | None:
    """Return the world of a dry run; None if the run is not dry. Raise :class:`WrongUse` or ProfileError."""
    if not dry:
        if nodes or hardware or network:
            raise WrongUse("--nodes, --hardware and --network are a dry run's: add --dry, or say --ranks")
        return None
    try:
        world = World((nodes or NODES) * (gpus or GPUS), gpus or GPUS, hardware, network)
    except ValueError as problem:
        raise WrongUse(str(problem)) from None
    world.profile()
    return world

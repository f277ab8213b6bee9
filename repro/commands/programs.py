"""Defines the options of commands that run a user's program, as one object that is made and checked at the click."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from streamrace.device.dry import World
from streamrace.device.options import AOT_EAGER, EAGER, GPUS, HELP, LaunchOptions, compile_option
from streamrace.device.scripts import Program, WrongUse
from streamrace.device.timing import Timing
from streamrace.repro.commands import flags
from streamrace.repro.sessions import folders


@dataclass(frozen=True, kw_only=True)
class ScriptOptions:
    """A script or a module of the user, with its arguments, its ranks, and the folder of its run."""

    module: bool = flags.option("-m", is_flag=True, help=HELP["module"])
    ranks: int | None = flags.option("--ranks", type=click.IntRange(1), help=HELP["ranks"])
    scale_limits: bool = flags.option("--scale-limits", is_flag=True, help=HELP["scale_limits"])
    compile: str = flags.option(
        "--compile",
        metavar=f"[{EAGER}|{AOT_EAGER}]",
        default=EAGER,
        callback=lambda _context, _parameter, name: compile_option(name),
        help=HELP["compile"],
    )
    gpus: int = flags.option("--gpus", type=click.IntRange(1), default=GPUS, help=HELP["gpus"])
    program: tuple[str, ...] = flags.argument(nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENTS]...")
    name: str | None
    runs: Path
    overwrite: bool

    def needed_program(self, example: str) -> Program:
        """Return the program. Raise :class:`click.UsageError` with the ``example`` if the command line names none."""
        if not self.program:
            raise click.UsageError(f"Name a script, for example: streamrace {example}")
        return Program(self.program[0], self.program[1:], module=self.module)


@dataclass(frozen=True, kw_only=True)
class ProgramOptions(ScriptOptions):
    """Also the releases of packages, and the timing, in which the program runs."""

    packages: tuple[str, ...]
    slow: tuple[str, ...]
    token: str
    report: bool = flags.option("--report", is_flag=True, help="Make the page of 'streamrace report' at once.")

    def launch(self, command: str, argument: str | None, dry: World | None = None, **more: Any) -> LaunchOptions:
        """Return the program with its timing. ``argument``: a launcher's, before the script's. Raise WrongUse."""
        program = self.needed_program(f"{command} train.py (or with -m a module).")
        if os.environ.get("DS_ACCELERATOR", "cuda") != "cuda":
            raise WrongUse(
                f"DS_ACCELERATOR is set to {os.environ['DS_ACCELERATOR']}, so DeepSpeed would not use the simulated "
                "GPU: unset it"
            )
        words = (*([argument] if argument else []), *program.arguments)
        options = LaunchOptions(
            Program(program.name, words, module=self.module),
            self.ranks or 0, dry, Timing.parse(self.token or "t1"), slowed(self.slow), seed=True,
            scale_limits=self.scale_limits, compile=self.compile, gpus=GPUS if dry else self.gpus, **more,
        )  # fmt: skip
        _ = program.folder
        return options

    def request(self, launch: LaunchOptions, ranks: int) -> dict[str, Any]:
        """Return the request as a run's folder stores it; restart this process with its packages if needed."""
        return folders.request(
            self.program,
            module=self.module,
            ranks=ranks,
            slow=launch.slow,
            timing=self.token,
            nodes=launch.dry.ranks // launch.dry.local if launch.dry else 0,
            packages=in_place(self.packages),
            scale_limits=self.scale_limits,
            compiling=self.compile,
            gpus=launch.gpus,
        )


def in_place(packages: Sequence[str]) -> dict[str, str]:
    """Return the replaced packages; restart this process with them if needed."""
    if not packages:
        return {}
    from streamrace.repro.sessions.release import become, ran_with

    become(packages)
    return ran_with(packages)


def slowed(texts: Sequence[str]) -> dict[str, float]:
    """Return the factors of ``--slow`` by pattern. Raise :class:`WrongUse`."""
    try:
        factors = flags.factors(texts, "kernel:aten::mm=20")
    except ValueError as error:
        raise WrongUse(str(error)) from None
    for pattern, factor in factors.items():
        if not pattern.startswith(("kernel:", "stream:")):
            raise WrongUse(f"--slow '{pattern}' begins with neither kernel: nor stream: (try kernel:aten::mm=20)")
        if not (factor > 0 and math.isfinite(factor)):
            raise WrongUse(f"--slow {pattern} needs a factor above 0, not {factor}")
    return factors

"""Lists the commands by name: their modules, required extras, and summaries.

Available before any command is imported: torch takes seconds, and not every extra is installed everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from streamrace.studies.registry import STUDIES

if TYPE_CHECKING:
    import click


class Command(NamedTuple):
    """A command of ``module``, named by :func:`attribute`. ``extras``: as in ``pip install 'streamrace[...]'``.

    ``gpu``: needs a process in which the simulated GPU is started before torch is imported. ``plain``: runs without
    click, and reads its own options: ``run`` of its module (``commands.plain``).
    """

    module: str
    extras: str
    text: str
    gpu: bool = False
    plain: bool = False


COMMANDS = {
    "doctor": Command("doctor", "", "Check whether the simulated GPU can run here; name what is missing.", plain=True),
    "demo": Command("demo", "reports", "Find, explain and cure a race in a program of ten lines. In seconds."),
    "check": Command("check", "reports", "Run your own program on a simulated GPU, and report its races."),
    "judge": Command("judge", "reports", "Judge recordings of a real GPU; say what order a profiler's trace has."),
    "provoke": Command("provoke", "reports", "Make a race come the other way round on this machine's GPU."),
    "waits": Command("waits", "reports", "Say which waits of your program are needed, and which you can remove."),
    "explain": Command("explain", "reports", "Explain a race of a run in words and pictures."),
    "fix": Command("fix", "reports", "Find the missing wait of a race, with its cost; a diff, tried live."),
    "emit-test": Command("emit_test", "reports", "Write a self-contained pytest file for a race of a run."),
    "hang": Command("hang", "reports", "Explain a hang of a real cluster, from the dumps of torch's flight recorder."),
    "bisect": Command("bisect", "reports", "Find the first release of a package that changes your program's verdict."),
    "run": Command("run", "deepspeed", "Run a scenario, compare it with its reference, and give a verdict.", gpu=True),
    "compare": Command("run", "deepspeed,reports", "Run a scenario under several fixes, side by side.", gpu=True),
    "fuzz": Command("fuzz", "deepspeed,reports", "Fuzz a scenario's timings; find the smallest that fails.", gpu=True),
    "replay": Command("replay", "deepspeed", "Execute one timing again, by its token.", gpu=True),
    "dry": Command("dry", "deepspeed", "Rehearse a full-size job: races, step time, memory.", gpu=True),
    **{name: Command("study", study.extras, study.text, gpu=study.gpu) for name, study in STUDIES.items()},
    "calibrate": Command("calibrate", "reports", "Make a hardware profile of your own GPU or your own host."),
    "choose": Command("choose", "deepspeed", "Find the fastest sharding strategy that fits a GPU's memory."),
    "releases": Command("releases", "deepspeed,reports", "Run a scenario with each known DeepSpeed release."),
    "catalogue": Command("catalogue", "deepspeed,reports", "Run known stream bugs in affected and fixed releases."),
    "diverge": Command("diverge", "reports", "Compare two recordings of the NaN watch."),
    "report": Command("report", "reports", "Make a page of runs, of a study, or of an incident of the NaN watch."),
    "list": Command("listing", "deepspeed,reports", "List the names of models, profiles, scenarios, fixes and more."),
    "cache": Command("cache", "reports", "List and remove what is kept for later commands."),
    "watch": Command("watch", "watch", "Run a training script, and find where NaN and Inf come from.", plain=True),
    "device": Command("device", "reports", "Run a script on the simulated GPU, without judging it.", plain=True),
}


# Headings of the list of commands in the help.
SECTIONS = {
    "First steps": ("doctor", "demo"),
    "Races in your own program": (
        "check",
        "explain",
        "fix",
        "waits",
        "emit-test",
        "bisect",
        "judge",
        "provoke",
        "hang",
        "device",
    ),
    "Known bugs and scenarios": ("catalogue", "run", "compare", "fuzz", "replay", "releases"),
    "Jobs of full size, on paper": ("dry", "choose", *STUDIES, "calibrate"),
    "NaN and Inf in training": ("watch", "diverge"),
    "Results and files": ("report", "list", "cache"),
}


class CommandLine(NamedTuple):
    """A command line: its name, the module that Python runs for it, its summary, and the package of its commands.

    ``sections``: names of commands by heading; empty: the help has one list.
    """

    name: str
    module: str
    text: str
    package: str
    commands: Mapping[str, Command]
    sections: Mapping[str, Sequence[str]] = MappingProxyType({})

    def load(self, name: str) -> click.Command:
        """Import a command, with all its imports."""
        command: click.Command = getattr(import_module(f"{self.package}.{self.commands[name].module}"), attribute(name))
        return command


STREAMRACE = CommandLine(
    "streamrace",
    "streamrace",
    """Stream races in sharded LLM training: reproduce them, find them, prove the cure.

    Stock DeepSpeed, or your own program, runs on a simulated GPU, on a laptop, the same way every time.
    """,
    "streamrace.repro.commands",
    COMMANDS,
    SECTIONS,
)


def attribute(name: str) -> str:
    """Return the name of a command in its module."""
    return name.replace("-", "_")


def lines() -> Iterator[str]:
    """Yield the commands, for ``make help``."""
    yield from (f"  {name:<11} {command.text}" for name, command in COMMANDS.items())


if __name__ == "__main__":
    print(*lines(), sep="\n")

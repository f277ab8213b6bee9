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
    "doctor": Command("doctor", "", "Can the simulated GPU run here? What is missing, and what brings it.", plain=True),
    "demo": Command("demo", "reports", "A race of ten lines, found and explained; and its cure. In seconds."),
    "check": Command("check", "reports", "Run your own program on a simulated GPU; ends with its races."),
    "waits": Command("waits", "reports", "Which waits of your program carry load, and which can go."),
    "explain": Command("explain", "reports", "A race of a run, as a person would tell it to a colleague."),
    "fix": Command("fix", "reports", "What would cure a race of a run, at which price; a diff, tried live."),
    "emit-test": Command("emit_test", "reports", "A race of a run as a pytest file that stands by itself."),
    "bisect": Command("bisect", "reports", "The first release of a package that changes what your program shows."),
    "run": Command("run", "deepspeed", "Run a scenario beside its reference; ends with the verdict.", gpu=True),
    "compare": Command("run", "deepspeed,reports", "Run a scenario under several fixes, side by side.", gpu=True),
    "fuzz": Command("fuzz", "deepspeed,reports", "A scenario in many timings; the smallest that goes wrong.", gpu=True),
    "replay": Command("replay", "deepspeed", "Execute one timing again, by its token.", gpu=True),
    "dry": Command("dry", "deepspeed", "Rehearse a full-size job: races, step time, memory.", gpu=True),
    **{name: Command("study", study.extras, study.text, gpu=study.gpu) for name, study in STUDIES.items()},
    "calibrate": Command("calibrate", "reports", "A hardware profile of your own GPU, from a trace of one step."),
    "choose": Command("choose", "deepspeed", "Which way to shard is the fastest that fits a GPU's memory."),
    "releases": Command("releases", "deepspeed,reports", "Run a scenario under the releases that people ran."),
    "catalogue": Command("catalogue", "deepspeed,reports", "Known stream bugs, in the releases with and without them."),
    "diverge": Command("diverge", "reports", "Compare two recordings of the live watch."),
    "report": Command("report", "reports", "Make a page of runs, of a study, or of an incident of the live watch."),
    "list": Command("listing", "deepspeed,reports", "The names of models, profiles, scenarios, fixes and more."),
    "cache": Command("cache", "reports", "What is kept for later commands, how large it is; removes it."),
    "watch": Command("watch", "watch", "Train as a script does, and find where NaN and Inf come from.", plain=True),
    "device": Command("device", "reports", "Run a script on the simulated GPU, without judging it.", plain=True),
}


# Headings of the list of commands in the help.
SECTIONS = {
    "First steps": ("doctor", "demo"),
    "Races in your own program": ("check", "explain", "fix", "waits", "emit-test", "bisect", "device"),
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

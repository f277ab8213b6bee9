"""All commands as one click group, but for those that run a script as Python would and read their own options."""

from __future__ import annotations

import io
import os
from importlib import import_module
from pathlib import Path

import click

from streamrace.device import kept, processor
from streamrace.device.frames import roomy
from streamrace.device.untrusted import visible
from streamrace.repro.commands import config
from streamrace.repro.commands.table import COMMANDS, attribute
from streamrace.repro.sessions import places, sentences

_UNCHANGED = (
    "check",
    "waits",
    "emit-test",
    "demo",
)  # run a program of the user's own, as it is, on a simulated GPU of its child


class _Lazy(click.Group):
    """Commands are imported when they are asked for: torch takes seconds."""

    answers = True  # what torch asks of the processor
    helping = False  # nothing will run

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS or COMMANDS[name].plain:
            return None
        if self.answers:
            processor.answer(deepspeed=name not in _UNCHANGED)
        if COMMANDS[name].gpu and not self.helping:
            from streamrace.device.launch import start
            from streamrace.device.ranks.forks import seldom

            seldom()  # before torch, transformers and DeepSpeed: a fourth of their imports' time
            start()
        command: click.Command = getattr(
            import_module(f"streamrace.repro.commands.{COMMANDS[name].module}"), attribute(name)
        )
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.text) for name, command in COMMANDS.items()])


# Whoever asks for the version is answered before this (repro/__main__.py), so here it is only listed.
@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--version", is_flag=True, expose_value=False, help="Show the version and exit.")
def group() -> None:
    """Stream races in sharded LLM training: reproduce them, find them, prove the cure.

    Stock DeepSpeed, or your own program, runs on a simulated GPU, on a laptop, the same way every time.
    """


def _on_gpu(name: str) -> bool:
    return name in _UNCHANGED or (name in COMMANDS and COMMANDS[name].gpu)


def run(arguments: list[str], launched: str | None = None) -> int | None:
    """Run the command. Gives an exit status for what click itself refuses, else None; raises what the command raises.

    ``launched``: what a launcher adds to the arguments of a script.
    """
    if not {"--help", "-h"} & {*arguments} and arguments and _on_gpu(arguments[0]):
        from streamrace.device.substitute import go_there

        go_there("streamrace", [*([launched] if launched else []), *arguments])
    kept.hold()
    # A recording is executed by the kernels that computed it, which are chosen while torch is imported.
    recorded = None
    if arguments[:1] == ["replay"]:
        from streamrace.repro.sessions.folders import processor_of

        recorded = processor_of(arguments[1:])
    for name, value in (recorded or {}).items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    _Lazy.answers = recorded is None
    _Lazy.helping = bool({"--help", "-h"} & {*arguments})
    try:
        with places.settled(lambda error: isinstance(error, click.ClickException) or sentences.refused(error)):
            _main(arguments, launched)
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        click.echo(visible(said.getvalue()), err=True, nl=False)
        return 2
    return None


@roomy
def _main(arguments: list[str], launched: str | None) -> None:
    name = arguments[0] if arguments else ""
    known = {} if _Lazy.helping else {name: config.defaults(name, Path.cwd())}
    try:
        group.main(arguments, prog_name="streamrace", standalone_mode=False, obj=launched, default_map=known)
    except click.Abort:
        raise KeyboardInterrupt from None

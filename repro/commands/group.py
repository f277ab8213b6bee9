"""Combines the commands into one click group, except for those that read their own options and run a script."""

from __future__ import annotations

import io
import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from streamrace import checkout
from streamrace.device import cache_entries, processor
from streamrace.process.frames import roomy
from streamrace.repro.commands import config
from streamrace.repro.commands.table import STREAMRACE, CommandLine
from streamrace.repro.sessions import sentences, staging
from streamrace.trace import wording
from streamrace.trace.untrusted import visible

_UNCHANGED = (
    "check",
    "waits",
    "emit-test",
    "demo",
)  # run a user's unmodified program, on a simulated GPU in a child
_WIDTH = 10  # characters of a command's name: the summaries of all sections begin in the same column


class LazyGroup(click.Group):
    """A group that imports commands on demand: torch takes seconds."""

    answers = True  # answer torch's queries about the processor
    helping = False  # for a help text only, no GPU is started

    def __init__(self, program: CommandLine) -> None:
        # Listed for --help only: repro/__main__.py answers --version before this.
        version = click.Option(["--version"], is_flag=True, expose_value=False, help="Show the version and exit.")
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
        super().__init__(program.name, params=[version], help=program.text, context_settings=settings)
        self.program = program

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.program.commands)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        commands = self.program.commands
        if name not in commands or commands[name].plain:
            return None
        if self.answers:
            processor.answer(deepspeed=name not in _UNCHANGED)
        if commands[name].gpu and not self.helping:
            from streamrace.device.launch import start
            from streamrace.process.forks import relax_gc

            relax_gc()  # before torch, transformers and DeepSpeed: saves a fourth of their import time
            start()
        return self.program.load(name)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        commands = self.program.commands
        for heading, names in (self.program.sections or {"Commands": [*commands]}).items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<{_WIDTH}}", commands[name].text) for name in names])

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command's name, without importing any command."""
        if incomplete.startswith("-"):
            return super().shell_complete(context, incomplete)
        names = (name for name in self.program.commands if name.startswith(incomplete))
        return [CompletionItem(name, help=self.program.commands[name].text) for name in names]

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.program.commands and not args[0].startswith("-"):
            context.fail(f"No such command '{args[0]}'{wording.near(args[0], self.program.commands)}.")
        return super().resolve_command(context, args)


def _on_gpu(program: CommandLine, name: str) -> bool:
    return name in _UNCHANGED or (name in program.commands and program.commands[name].gpu)


def run(arguments: list[str], launched: str | None = None, program: CommandLine = STREAMRACE) -> int | None:
    """Run the command. Returns an exit status if click refuses it, else None; raises the command's exceptions.

    ``launched``: argument that a launcher adds to the script's.
    """
    # Help needs no device, and on a real GPU a CUDA build is needed as it is.
    if not {"--help", "-h", "--on-gpu"} & {*arguments} and arguments and _on_gpu(program, arguments[0]):
        from streamrace.device.substitute import go_there

        go_there(program.module, [*([launched] if launched else []), *arguments])
    cache_entries.hold()
    # A recording needs the CPU kernels that computed it, and torch selects them at import.
    recorded = None
    if arguments[:1] == ["replay"]:
        from streamrace.repro.sessions.folders import processor_of

        recorded = processor_of(arguments[1:])
    for name, value in (recorded or {}).items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    group = LazyGroup(program)
    group.answers = recorded is None
    group.helping = bool({"--help", "-h"} & {*arguments}) or f"_{program.name.upper()}_COMPLETE" in os.environ
    try:
        with staging.settled(lambda error: isinstance(error, click.ClickException) or sentences.refused(error)):
            _main(group, arguments, launched)
    except click.ClickException as error:
        text = io.StringIO()
        error.show(text)
        click.echo(visible(text.getvalue()), err=True, nl=False)
        return 2
    return None


@roomy
def _main(group: LazyGroup, arguments: list[str], launched: str | None) -> None:
    name = arguments[0] if arguments else ""
    defaults = {} if group.helping else {name: config.defaults(name, Path.cwd())}
    try:
        group.main(arguments, prog_name=group.name, standalone_mode=False, obj=launched, default_map=defaults)
    except click.Abort as end:
        if "marshal data" in str(end.__cause__):  # an EOFError of an import, which click takes for the end of the input
            raise click.ClickException(
                "a compiled file of Python is cut off, as on a disk that is full: remove the folders __pycache__ "
                f"below {checkout.PACKAGE} and run the command again"
            ) from end
        raise KeyboardInterrupt from None

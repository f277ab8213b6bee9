"""``python -m repro``."""

from __future__ import annotations

import sys
from typing import ClassVar

import click

from repro import processor


class _Lazy(click.Group):
    """Commands are imported when they are asked for: torch takes seconds."""

    places: ClassVar = {
        "run": ("repro.commands.run", "run", "Run a scenario beside its reference; ends with the verdict."),
        "compare": ("repro.commands.run", "compare", "Run a scenario under several fixes, side by side."),
        "fuzz": ("repro.commands.fuzz", "fuzz", "Replay a scenario under many timings; the smallest that goes wrong."),
        "replay": ("repro.commands.replay", "replay", "Execute one timing again, by its token."),
        "placements": ("repro.commands.placements", "placements", "Where hpZ's synchronisation could stand: prices."),
        "dry": ("repro.commands.dry", "dry", "Rehearse a full-size job: races, step time, memory."),
        "paper": ("repro.commands.paper", "paper", "The papers' claims, side by side with what we get."),
        "sweep": ("repro.commands.sweep", "sweep", "Where the race shows and hpZ pays: networks x micro-batches."),
        "memory": ("repro.commands.memory", "memory", "What hpZ's secondary copy costs in memory, by model and group."),
        "choose": ("repro.commands.choose", "choose", "Which way to shard is the fastest that fits a GPU's memory."),
        "paro": ("repro.commands.paro", "paro", "PaRO's strategies beside DDP, their formulas and the paper."),
        "releases": ("repro.commands.releases", "releases", "Run a scenario under the releases that people ran."),
        "diverge": ("repro.commands.diverge", "diverge", "Compare two recordings of the live watch."),
        "report": ("repro.commands.report", "report", "Make a page of an incident that the live watch saved."),
        "watch": ("repro.commands.watch", "watch", "Train as a script does, and find where NaN and Inf come from."),
    }

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.places)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self.places:
            return None
        module, attribute, _ = self.places[name]
        if name != "watch":  # that runs the user's own training, as it is
            processor.answer()
        from importlib import import_module

        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in self.places.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--local_rank", hidden=True)  # DeepSpeed's launcher puts it behind the module's name
@click.pass_context
def cli(context: click.Context, local_rank: str | None) -> None:
    """Stream races in sharded LLM training: reproduce them, find them, prove the cure.

    Stock DeepSpeed runs on a simulated asynchronous accelerator, on a laptop, the same way every time.
    """
    context.obj = None if local_rank is None else f"--local_rank={local_rank}"


def main(arguments: list[str] | None = None) -> None:
    """The command line. One sentence for what goes wrong, never a traceback for the user's mistake."""
    try:
        cli.main(arguments, prog_name="repro", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        sys.exit(_explain(error))


def _explain(error: Exception) -> int:
    from detectors.live.incident import IncidentError
    from detectors.recordings import RecordingError
    from fuzz.engines import EngineError
    from reports.data.loading import ReportError
    from repro.cluster import RankFailed
    from repro.commands.session import Interrupted
    from repro.releases import ReleaseError
    from repro.replay.faults import ReplayError
    from repro.replay.names import UnknownOperation
    from repro.replay.tokens import TokenError
    from repro.trace import TraceError
    from scenarios.scenario import ScenarioError
    from scenarios.sharding.strategy import ShardingError

    if isinstance(error, Interrupted):
        print(
            f"Ended after {error.findings.steps_done} whole steps: {error}. What was found is written.", file=sys.stderr
        )
        return 3 if error.cause else 130
    if isinstance(error, (RankFailed, EngineError)):
        print(f"Failed: {error}", file=sys.stderr)
        return 3
    if isinstance(error, UnknownOperation):
        error = UnknownOperation(f"{error}; the token is of another program, or of another state of it")
    known = (ScenarioError, ShardingError, ReleaseError, TraceError, IncidentError, RecordingError, ReportError)
    if isinstance(error, (*known, ReplayError, TokenError, UnknownOperation)):
        print(f"Error: {error}", file=sys.stderr)
        return 2
    raise error


if __name__ == "__main__":
    main()

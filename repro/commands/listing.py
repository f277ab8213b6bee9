"""Implements ``list``: lists the names that other commands take."""

from __future__ import annotations

from collections.abc import Callable

import click

from streamrace.reports.screen.console import Terminal
from streamrace.studies.table import Column, Table
from streamrace.trace.wording import near


@click.command()
@click.argument("kind", required=False, metavar="[KIND]")
def list(kind: str | None) -> None:
    """List the names that other commands take: models, hardware profiles, scenarios, fixes, strategies, releases.

    KIND is one of these; without it all are listed. Exit status: 0 done, 2 wrong usage.
    """
    if kind is not None and kind not in _KINDS:
        raise click.UsageError(
            f"There are no names of the kind '{kind}'{near(kind, _KINDS)}: choose one of {', '.join(_KINDS)}."
        )
    console = Terminal()
    for name in _KINDS if kind is None else [kind]:
        console.print(_KINDS[name]())


def _models() -> Table:
    from streamrace.scenarios.models import FULL_SIZE

    columns = ["models", "family", Column("parameters", ".1f"), Column("layers", "d"), Column("width", "d")]
    rows = [[spec.name, spec.family, spec.parameters / 1e9, spec.layers, spec.hidden] for spec in FULL_SIZE.values()]
    note = "Billions of parameters. For --model of dry, choose and the studies, and --stands-for of run."
    return Table("", columns, rows, note)


def _profiles() -> Table:
    from streamrace.device.hardware import load_profile, profile_names

    rows = [[name, load_profile(name).description] for name in profile_names()]
    return Table("", ["profiles", "what it describes"], rows, "For --hardware, which takes a .toml file of yours too.")


def _scenarios() -> Table:
    from streamrace.scenarios.registry import NAMED

    rows = [[name, scenario.description] for name, scenario in NAMED.items()]
    return Table("", ["scenarios", "what it is"], rows, "For fuzz; a token begins with one.")


def _fixes() -> Table:
    from streamrace.frameworks.deepspeed.fixes import CURES, Fix

    rows = [[str(fix), fix.what or "nothing", "yes" if fix in CURES else "no"] for fix in Fix]
    return Table("", ["fixes", "what it does", "cures"], rows, "For --fix and --fixes.")


def _strategies() -> Table:
    from streamrace.scenarios.sharding.strategy import NAMES, legal

    names = {letters: name for name, letters in NAMES.items()}
    rows = [[str(strategy), names.get(str(strategy), "")] for strategy in legal()]
    note = "Parameters, gradients, optimizer state: N whole, I within a group, G over all GPUs. For --sharding."
    return Table("", ["strategies", "also called"], rows, note)


def _releases() -> Table:
    from streamrace.frameworks.deepspeed.releases import KNOWN, PINNED

    rows = [[release, "installed by 'make setup'" if release == PINNED else "installed where it is first asked for"]
            for release in KNOWN]  # fmt: skip
    return Table("", ["releases", "of DeepSpeed"], rows, "For --deepspeed.")


_KINDS: dict[str, Callable[[], Table]] = {
    "models": _models,
    "profiles": _profiles,
    "scenarios": _scenarios,
    "fixes": _fixes,
    "strategies": _strategies,
    "releases": _releases,
}

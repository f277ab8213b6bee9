"""Implements ``bisect``: finds the first release of a package that changes the outcome of a program."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click

from streamrace.device.options import EAGER, GPUS
from streamrace.repro.commands import flags
from streamrace.repro.commands.programs import ScriptOptions

FILE = "bisect.json"
_UNKNOWN = 4


@dataclass(frozen=True, kw_only=True)
class BisectOptions(ScriptOptions):
    """Also the package and the releases that are tried."""

    package: str = flags.option(
        "--package", required=True, metavar="NAME", help="The package whose releases are tried, such as deepspeed."
    )
    oldest: str = flags.option("--from", required=True, metavar="VERSION", help="The oldest release to try.")
    newest: str = flags.option("--to", required=True, metavar="VERSION", help="The newest release to try.")
    others: tuple[str, ...] = flags.option(
        "--with", multiple=True, metavar="NAME==VERSION", help="Use this release of another package in each run."
    )


@click.command(context_settings={"allow_interspersed_args": False})
@flags.options(BisectOptions)
@flags.run_folder("bisect-, its name and the time")
def bisect(options: BisectOptions) -> None:
    """Check SCRIPT with releases of a package, and find the first that changes the verdict or the races.

    Each release is installed once, unmodified, into the cache. Pre-releases are not tried. Exit status: 0
    found, 2 wrong usage, 4 nothing changes, or a release does not run, 130 interrupted.
    """
    from streamrace.device.packages import names
    from streamrace.device.packages.names import PackageError
    from streamrace.device.scripts import WrongUse
    from streamrace.reports.screen.console import Terminal
    from streamrace.repro.sessions import folders, release_trial, staging
    from streamrace.studies import bisection

    program = options.needed_program("bisect --package NAME --from A --to B train.py.")
    package, oldest, newest, ranks = options.package, options.oldest, options.newest, options.ranks
    if not names.is_name(package):
        raise WrongUse(f"--package takes a name here, and --from and --to the versions, not '{package}'")
    fixed = names.several(options.others, "--with")
    if any(other.name == names.parse(f"{package}==0").name for other in fixed):
        raise PackageError(f"--with names {package}, whose releases are tried: leave it out")
    _ = program.folder
    releases = release_trial.between(package, oldest, newest)
    console = Terminal()
    words = ["--ranks", str(ranks)] if ranks else []
    words += ["--compile", options.compile] if options.compile != EAGER else []
    words += ["--gpus", str(options.gpus)] if options.gpus != GPUS else []
    words += ["--scale-limits"] * options.scale_limits + ["-m"] * options.module + [*options.program]
    query = {"package": package, "from": oldest, "to": newest, "with": list(options.others), "program": " ".join(words)}
    folder = folders.marked(
        options.runs / (options.name or f"bisect-{package}-{datetime.now():%Y%m%d-%H%M%S}"),
        FILE,
        lambda file: folders.put(file, {"asked": query}),
        overwrite=options.overwrite,
    )
    console.print(f"{package}: {len(releases)} releases from {releases[0]} to {releases[-1]}", highlight=False)

    def run(release: str) -> bisection.Showing:
        with console.status(f"{package} {release}"):
            showing = release_trial.show([f"{package}=={release}", *map(str, fixed)], words, folder, release)
        console.print(f"  {release:<10} {showing}", highlight=False, soft_wrap=True, markup=False)
        return showing

    result = bisection.bisect(releases, run)
    sentence = result.sentence(package, releases)
    folders.put(folder / FILE, {"asked": query, **_as_dict(result), "sentence": sentence})
    folder = staging.commit(folder)
    console.print(sentence, highlight=False, soft_wrap=True, markup=False)
    for heading, races in (("Gone", result.gone), ("New", result.new)):
        for race in races:
            console.print(f"  {heading}: {race}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"Files: {folder}/{FILE}, a folder for each release", highlight=False, soft_wrap=True, markup=False)
    if not result.first:
        raise SystemExit(_UNKNOWN)


def _as_dict(result: Any) -> dict[str, Any]:
    return {
        "tried": {
            release: {"verdict": showing.verdict, "races": sorted(showing.races), "failure": showing.failure}
            for release, showing in result.tried.items()
        },
        "before": result.before,
        "first": result.first,
        "gone": result.gone,
        "new": result.new,
        "broken": result.broken,
    }

"""Implements ``bisect``: finds the first release of a package that changes the outcome of a program."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import click

from streamrace.repro.commands import flags

FILE = "bisect.json"
_UNKNOWN = 4


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--package", required=True, metavar="NAME", help="The package whose releases are tried: deepspeed.")
@click.option("--from", "oldest", required=True, metavar="VERSION", help="The oldest of them.")
@click.option("--to", "newest", required=True, metavar="VERSION", help="The newest of them.")
@click.option(
    "--with", "others", multiple=True, metavar="NAME==VERSION", help="With this release of another package, each time."
)
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module's name, as for python -m.")
@click.option("--ranks", type=click.IntRange(1), help="Start so many ranks of the script, with a simulated GPU each.")
@flags.run_folder("bisect-, its name and the time")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENTS]...")
def bisect(
    package: str,
    oldest: str,
    newest: str,
    others: tuple[str, ...],
    module: bool,
    ranks: int | None,
    name: str | None,
    runs: Path,
    overwrite: bool,
    program: tuple[str, ...],
) -> None:
    """Check SCRIPT under releases of a package, and find the first one that changes the verdict or the races.

    Each release is installed once, into the cache, as it was released; pre-releases are left out. Exit status: 0
    found, 2 wrong usage, 4 nothing changes, or a release does not run, 130 interrupted.
    """
    from streamrace.device.packages import names
    from streamrace.device.packages.names import PackageError
    from streamrace.device.scripts import Program, WrongUse
    from streamrace.reports.screen.console import Terminal
    from streamrace.repro.sessions import bisected, folders, staging
    from streamrace.studies import bisection

    if not program:
        raise click.UsageError("Name a script, for example: streamrace bisect --package NAME --from A --to B train.py.")
    if not names.is_name(package):
        raise WrongUse(f"--package takes a name here, and --from and --to the versions, not '{package}'")
    fixed = names.several(others, "--with")
    if any(one.name == names.parse(f"{package}==0").name for one in fixed):
        raise PackageError(f"--with names {package}, whose releases are tried: leave it out")
    _ = Program(program[0], module=module).folder
    releases = bisected.between(package, oldest, newest)
    console = Terminal()
    words = [*(["--ranks", str(ranks)] if ranks else []), *(["-m"] if module else []), *program]
    asked = {"package": package, "from": oldest, "to": newest, "with": list(others), "program": " ".join(words)}
    folder = folders.marked(
        runs / (name or f"bisect-{package}-{datetime.now():%Y%m%d-%H%M%S}"),
        FILE,
        lambda file: folders.put(file, {"asked": asked}),
        overwrite=overwrite,
    )
    console.print(f"{package}: {len(releases)} releases from {releases[0]} to {releases[-1]}", highlight=False)

    def run(release: str) -> bisection.Showing:
        with console.status(f"{package} {release}"):
            shown = bisected.show([f"{package}=={release}", *map(str, fixed)], words, folder, release)
        console.print(f"  {release:<10} {shown}", highlight=False, soft_wrap=True, markup=False)
        return shown

    found = bisection.bisect(releases, run)
    sentence = found.sentence(package, releases)
    folders.put(folder / FILE, {"asked": asked, **_told(found), "sentence": sentence})
    folder = staging.commit(folder)
    console.print(sentence, highlight=False, soft_wrap=True, markup=False)
    for what, races in (("Gone", found.gone), ("New", found.new)):
        for race in races:
            console.print(f"  {what}: {race}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"Files: {folder}/{FILE}, a folder for each release", highlight=False, soft_wrap=True, markup=False)
    if not found.first:
        raise SystemExit(_UNKNOWN)


def _told(found: Any) -> dict[str, Any]:
    return {
        "tried": {
            release: {"verdict": one.verdict, "races": sorted(one.races), "failure": one.failure}
            for release, one in found.tried.items()
        },
        "before": found.before,
        "first": found.first,
        "gone": found.gone,
        "new": found.new,
        "broken": found.broken,
    }

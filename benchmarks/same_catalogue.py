"""``python -m benchmarks.same_catalogue OLD_CHECKOUT [ID]...``: compares the catalogue's findings of two versions.

Each entry's program runs in both checkouts with the same releases, its affected side and its fixed one. Compared are
the verdict and the races, whatever their order and however they are grouped: kind, kernels, accesses, streams, ranks,
counts of occurrences, and for each side a line that both versions show: one may leave out a library's line that only
passes a call on. Witnesses and sentences are left out. Exit status 0 where all is equal, 1 where something differs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from benchmarks.same_findings import Checkout

_SIDES = ("affected", "fixed")


def findings(file: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return the verdict and the races in a ``findings.json``. A file that is not there: no verdict."""
    if not file.exists():
        return "no verdict", []
    found = json.loads(file.read_text(encoding="utf-8"))
    return str(found["verdict"]), list(found["races"])


def differences(old: Path, new: Path) -> list[str]:
    """Return the deviations of one ``findings.json`` from another, in sentences without full stops."""
    (before, races), (after, now) = findings(old), findings(new)
    told = [f"{before} before, {after} now"] if before != after else []
    for race in races:
        same = next((other for other in now if _alike(race, other)), None)
        if same is None:
            told.append(f"not found any more: {_written(race)}")
        else:
            now.remove(same)
    return [*told, *(f"new: {_written(race)}" for race in now)]


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Check whether two races differ in nothing but lines that one of them leaves out."""
    if any(one[name] != other[name] for name in ("kind", "occurrences", "manifested", "ranks")):
        return False
    pairs = [(one[side], other[side]) for side in ("first", "second")]
    return all(
        all(left[name] == right[name] for name in ("kernel", "access", "stream"))
        and (not left["stack"] or not right["stack"] or any(frame in right["stack"] for frame in left["stack"]))
        for left, right in pairs
    )


def _written(race: dict[str, Any]) -> str:
    counts = f"{race['occurrences']} times on ranks {race['ranks']}, {race['manifested']} shown"
    return f"{race['kind']}: {_side(race['first'])}; {_side(race['second'])}; {counts}"


def _side(side: dict[str, Any]) -> str:
    line = "{file}:{line} {function}".format(**side["stack"][0]) if side["stack"] else "no line"
    return f"{side['access']} by {side['kernel']} on {side['stream']} at {line}"


def _run(checkout: Checkout, words: tuple[str, ...], folder: Path) -> Path:
    """Run the catalogue in a checkout; return the folder that holds a folder for each entry."""
    folder.mkdir()
    command = ("-m", "streamrace", "catalogue", "--runs", str(folder), *words)
    done = checkout.python(*command, folder=checkout.path)  # paths of programs are relative to it in both
    if done.returncode not in (0, 1):
        raise click.ClickException(f"the catalogue ended with {done.returncode} in {checkout.path}:\n{done.stderr}")
    return folder / "catalogue"


@click.command(context_settings={"help_option_names": ["-h", "--help"], "ignore_unknown_options": True})
@click.argument("old", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path))
@click.argument("words", nargs=-1)
@click.option("--new", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path))
def main(old: Path, words: tuple[str, ...], new: Path | None) -> None:
    """Compare the findings of the checkout OLD in the catalogue with those of this one (or NEW).

    WORDS go to ``streamrace catalogue``: entries (all if none is named), or options such as --ci.
    """
    console = Console()
    differing = entries = 0
    with tempfile.TemporaryDirectory() as made:
        runs = []
        for name, checkout in (("old", old), ("new", new or Path(__file__).resolve().parents[1])):
            with console.status(f"the catalogue in {checkout}"):
                runs.append(_run(Checkout.at(checkout), words, Path(made) / name))
        for entry in sorted({folder.name for run in runs for folder in run.iterdir() if (folder / _SIDES[0]).is_dir()}):
            entries += 1
            for side in _SIDES:
                files = [run / entry / side / "findings.json" for run in runs]
                told = differences(*files)
                differing += bool(told)
                for line in told:
                    console.print(f"{entry}, {side}: {escape(line)}", highlight=False, soft_wrap=True)
    console.print(f"{entries} entries, {differing} sides differ")
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()

"""Implements ``cache``: lists and removes what is kept for later commands."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby

import click

from streamrace.device import cache_entries
from streamrace.device.cache_entries import Kept
from streamrace.device.scripts import WrongUse
from streamrace.trace import wording
from streamrace.trace.untrusted import visible

_DAY_S = 86400
_WORDS = {
    cache_entries.RELEASE: "release of a package",
    cache_entries.TORCH: "CPU build of torch",
    cache_entries.NATIVE: "compiled part",
    cache_entries.REFERENCE: "references of scenarios",
    cache_entries.LEFT: "left by a command that was killed",
    cache_entries.OTHER: "of another version",
}


@click.command()
@click.option("--older-than", type=click.FloatRange(0), metavar="DAYS", help="With clear: unused for this long.")
@click.argument("what", nargs=-1, metavar="[clear [NAME]...]")
def cache(older_than: float | None, what: tuple[str, ...]) -> None:
    """List what is kept for later commands: releases of packages, CPU builds of torch, compiled parts, references.

    'clear' removes all, or each NAME: a name of the list or a kind (release, torch, native, reference, unfinished,
    other). A removed entry is made again when a command needs it. Entries that a running command uses stay, and are
    named. STREAMRACE_CACHE sets the folder of the cache. Exit status: 0 done, 2 wrong usage, or an entry is in use
    and stays.
    """
    if what and what[0] != "clear":
        raise click.UsageError(f"'{what[0]}' is not an action on the cache: say clear, or nothing.")
    if older_than is not None and not what:
        raise click.UsageError("--older-than says what to clear: streamrace cache clear --older-than DAYS")
    entries = cache_entries.everything()
    if what:
        _clear(_named(entries, what[1:]), older_than)
    else:
        _list(entries)


def _list(entries: Sequence[Kept]) -> None:
    from streamrace.reports.screen.console import Terminal
    from streamrace.studies.table import Column, Table

    console = Terminal()
    rows = []
    for (kind, name, version), group in groupby(
        sorted(entries, key=lambda entry: (cache_entries.KINDS.index(entry.kind), entry.name, _version(entry))),
        key=lambda entry: (entry.kind, entry.name, _version(entry)),
    ):
        files = [*group]
        state = "in use" if any(entry.in_use for entry in files) else _ago(max(entry.last for entry in files))
        words = f"{_WORDS[kind]}{version}" + (f", {len(files)} files" if len(files) > 1 else "")
        rows.append([name, words, _megabytes(sum(entry.size for entry in files)), state])
    places = wording.every(cache_entries.folders())
    if not rows:
        console.print(f"Nothing is kept in {places}.", highlight=False, soft_wrap=True)
        return
    columns = ["name", "what it is", Column("size", right=True), Column("last used", right=True)]
    total = _megabytes(sum(entry.size for entry in entries))
    console.print(Table("", columns, rows))
    console.print(f"{total} in {places}", highlight=False, soft_wrap=True)
    console.print("'streamrace cache clear [NAME]... [--older-than DAYS]' removes it.", highlight=False)


def _clear(wanted: Sequence[Kept], older_than: float | None) -> None:
    before = None if older_than is None else time.time() - older_than * _DAY_S
    old = [entry for entry in wanted if before is None or entry.last < before]
    removed = [entry for entry in old if cache_entries.remove(entry)]
    busy = [entry for entry in old if entry not in removed]
    if removed:
        names = ", ".join(dict.fromkeys(entry.name for entry in removed))
        click.echo(visible(f"Removed, {_megabytes(sum(entry.size for entry in removed))}: {names}."))
    elif not busy:
        click.echo("There is nothing to remove.")
    if busy:
        in_use = ", ".join(sorted({entry.name for entry in busy}))
        raise WrongUse(f"a running command uses {in_use}: it stays; clear it when that command has ended")


def _named(entries: Sequence[Kept], names: Sequence[str]) -> Sequence[Kept]:
    valid = {*cache_entries.KINDS, *(entry.name for entry in entries)}
    if unknown := [name for name in names if name not in valid]:
        raise WrongUse(f"nothing of the name '{unknown[0]}' is kept: 'streamrace cache' lists what is")
    return [entry for entry in entries if not names or {entry.name, entry.kind} & {*names}]


def _version(entry: Kept) -> str:
    """Return the Python version that a release is installed for, from its folder."""
    return f", {entry.place.parent.name.replace('python', 'Python ')}" if entry.kind == cache_entries.RELEASE else ""


def _megabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 10**9 else f"{size / 1e6:,.1f} MB"


def _ago(last: float) -> str:
    days = int((time.time() - last) // _DAY_S)
    return "today" if days < 1 else "yesterday" if days == 1 else f"{days} days ago"

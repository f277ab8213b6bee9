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
@click.option("--older-than", type=click.FloatRange(0), metavar="DAYS", help="With clear: what was not used since.")
@click.argument("what", nargs=-1, metavar="[clear [NAME]...]")
def cache(older_than: float | None, what: tuple[str, ...]) -> None:
    """What is kept for later commands: releases of packages, CPU builds of torch, compiled parts, references.

    'clear' removes it: all, or each NAME, which is a name of the list or a kind: release, torch, native, reference,
    unfinished, other. What is removed is made anew when a command needs it. What a running command uses stays, and is
    told. STREAMRACE_CACHE says where the cache is. Exit status: 0 done, 2 wrong usage, or something is in use and
    stays.
    """
    if what and what[0] != "clear":
        raise click.UsageError(f"'{what[0]}' is nothing that can be done with the cache: say clear, or nothing.")
    if older_than is not None and not what:
        raise click.UsageError("--older-than says what to clear: streamrace cache clear --older-than DAYS")
    every = cache_entries.everything()
    if what:
        _clear(_named(every, what[1:]), older_than)
    else:
        _list(every)


def _list(every: Sequence[Kept]) -> None:
    from streamrace.reports.screen.console import Terminal
    from streamrace.studies.table import Column, Table

    console = Terminal()
    rows = []
    for (kind, name, where), group in groupby(
        sorted(every, key=lambda one: (cache_entries.KINDS.index(one.kind), one.name, _where(one))),
        key=lambda one: (one.kind, one.name, _where(one)),
    ):
        ones = [*group]
        state = "in use" if any(one.in_use for one in ones) else _ago(max(one.last for one in ones))
        words = f"{_WORDS[kind]}{where}" + (f", {len(ones)} files" if len(ones) > 1 else "")
        rows.append([name, words, _megabytes(sum(one.size for one in ones)), state])
    places = wording.every(cache_entries.folders())
    if not rows:
        console.print(f"Nothing is kept in {places}.", highlight=False, soft_wrap=True)
        return
    columns = ["name", "what it is", Column("size", right=True), Column("last used", right=True)]
    total = _megabytes(sum(one.size for one in every))
    console.print(Table("", columns, rows))
    console.print(f"{total} in {places}", highlight=False, soft_wrap=True)
    console.print("'streamrace cache clear [NAME]... [--older-than DAYS]' removes it.", highlight=False)


def _clear(wanted: Sequence[Kept], older_than: float | None) -> None:
    before = None if older_than is None else time.time() - older_than * _DAY_S
    old = [one for one in wanted if before is None or one.last < before]
    gone = [one for one in old if cache_entries.remove(one)]
    stay = [one for one in old if one not in gone]
    if gone:
        names = ", ".join(dict.fromkeys(one.name for one in gone))
        click.echo(visible(f"Removed, {_megabytes(sum(one.size for one in gone))}: {names}."))
    elif not stay:
        click.echo("There is nothing to remove.")
    if stay:
        said = ", ".join(sorted({one.name for one in stay}))
        raise WrongUse(f"a running command uses {said}: it stays; clear it when that command has ended")


def _named(every: Sequence[Kept], names: Sequence[str]) -> Sequence[Kept]:
    known = {*cache_entries.KINDS, *(one.name for one in every)}
    if unknown := [name for name in names if name not in known]:
        raise WrongUse(f"nothing of the name '{unknown[0]}' is kept: 'streamrace cache' lists what is")
    return [one for one in every if not names or {one.name, one.kind} & {*names}]


def _where(one: Kept) -> str:
    """Return the Python version that a release is installed for, from its folder."""
    return f", {one.place.parent.name.replace('python', 'Python ')}" if one.kind == cache_entries.RELEASE else ""


def _megabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 10**9 else f"{size / 1e6:,.1f} MB"


def _ago(last: float) -> str:
    days = int((time.time() - last) // _DAY_S)
    return "today" if days < 1 else "yesterday" if days == 1 else f"{days} days ago"

"""Finds, by halving like git bisect, the release of a package that first changes the outcome of a program.

The outcome of a run is its verdict, and its races by kind and places: lines move between releases, files and functions
stay. A release that does not run gives no information about its neighbours, so the search stops there and reports the
ranges in which to continue; git bisect's way, trying neighbours, would blame several releases without deciding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from streamrace.trace import wording


@dataclass(frozen=True)
class Showing:
    """The outcome of a run of one release. ``races``: each as kind and places; ``failure``: why the run failed."""

    verdict: str = ""
    races: frozenset[str] = frozenset()
    failure: str = ""

    def __str__(self) -> str:
        if self.failure:
            return f"does not run: {self.failure}"
        return f"{self.verdict} ({wording.count(len(self.races), 'race')})" if self.races else self.verdict


@dataclass(frozen=True)
class Found:
    """The result. ``tried``: by release, in the order of the runs. ``before``, ``first``: two neighbours that differ.

    Both are empty where ``broken``, a release that did not run, ended the search, or where the two ends agree.
    ``open``: if a release did not run, the oldest and the newest release between which the change lies.
    """

    tried: Mapping[str, Showing] = field(default_factory=dict)
    before: str = ""
    first: str = ""
    broken: str = ""
    open: tuple[str, str] = ("", "")

    @property
    def gone(self) -> list[str]:
        """Return the races of ``before`` that ``first`` lacks."""
        return sorted(self.tried[self.before].races - self.tried[self.first].races) if self.first else []

    @property
    def new(self) -> list[str]:
        """Return the races of ``first`` that ``before`` lacks."""
        return sorted(self.tried[self.first].races - self.tried[self.before].races) if self.first else []

    def sentence(self, package: str, releases: Sequence[str]) -> str:
        """Describe the result in a sentence or two."""
        if self.first:
            base, other = self.tried[self.before], self.tried[self.first]
            text = f"{package} {self.first} is the first that differs: {other}, and {base} in {self.before} before it."
            last = releases[-1]
            again = self.tried[last] != other
            return text + (f" It is not the last: {last} is {self.tried[last]}." if again else "")
        if self.broken:
            return f"{package} {self.broken} {self.tried[self.broken]}. {self._narrower(releases)}"
        return (
            f"Nothing changes: {package} {releases[0]} and {releases[-1]} both are {self.tried[releases[0]]}. What "
            "changes between them and changes back is not seen: take a narrower range."
        )

    def _narrower(self, releases: Sequence[str]) -> str:
        at = releases.index(self.broken)
        if at == 0:
            return f"Go on with --from {releases[1]}, or a later one." if len(releases) > 2 else ""
        if at == len(releases) - 1:
            return f"Go on with --to {releases[at - 1]}, or an earlier one." if len(releases) > 2 else ""
        low, high = self.open
        parts = []
        if releases[at - 1] != low:
            parts.append(f"--from {low} --to {releases[at - 1]}")
        if releases[at + 1] != high:
            parts.append(f"--from {releases[at + 1]} --to {high}")
        sentence = f"The change lies between {low} and {high}"
        return f"{sentence}. Go on with {', or '.join(parts)}." if parts else f"{sentence}, its only neighbours."


def bisect(releases: Sequence[str], run: Callable[[str], Showing]) -> Found:
    """Find the first of ``releases``, oldest first and at least two, whose outcome differs from the releases before.

    ``run`` is called at most once for each release, for 2 + log2(count) of them. If the outcome changes several times,
    one of the changes is found.
    """
    showings: dict[str, Showing] = {}

    def show(release: str) -> Showing:
        if release not in showings:
            showings[release] = run(release)
        return showings[release]

    low, high = 0, len(releases) - 1
    for end in (low, high):
        if show(releases[end]).failure:
            return Found(showings, broken=releases[end])
    start = showings[releases[low]]
    if showings[releases[high]] == start:
        return Found(showings)
    while high - low > 1:
        middle = (low + high) // 2
        now = show(releases[middle])
        if now.failure:
            return Found(showings, broken=releases[middle], open=(releases[low], releases[high]))
        low, high = (middle, high) if now == start else (low, middle)
    return Found(showings, before=releases[low], first=releases[high])

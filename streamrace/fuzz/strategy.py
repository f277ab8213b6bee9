"""Draws timings: for property tests with Hypothesis, or from a plain random generator.

A timing is drawn decision by decision, each an integer from 0: the kind of slow object (0: none), the amount (0: none),
and the object. All zeros are the recorded order, so shrinking by Hypothesis moves towards it: to fewer deviations
first, then to smaller ones, then to earlier operations::

    @given(stream_timings(subject))
    def test_that_no_timing_changes_training(timing):
        assert not subject.run(timing).diverged
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Literal

from hypothesis import strategies as st

from streamrace.device.tokens import MOST_DEVIATIONS, MOST_FACTOR, MOST_NS
from streamrace.replay.deviations import Deviation, Jitter, OperationDelay, Stretch
from streamrace.replay.names import OperationName

if TYPE_CHECKING:
    from streamrace.fuzz.subject import Subject

_Pick = Callable[[int], int]
"""Returns a number from 0 to the given one, both included."""

_US = 1000
_LONGEST_US = 1 << 18  # a quarter of a second: longer than a step of most programs
_STRONGEST = 1 << 10
_MOST_PERCENT = 1 << 13
_SEEDS = 256
_DIGIT = 256  # Hypothesis draws evenly from up to this many numbers; from more it prefers small ones

# Kinds in the order in which shrinking prefers them, and their relative frequency.
_WEIGHTS = {"none": 6, "long": 4, "late": 4, "stream": 2, "link": 1, "rank": 1, "host": 1, "jitter": 1}
_TOUCHES_PARAMETER = 4  # relative weight of an operation that touches a parameter


@dataclass(frozen=True)
class _Space:
    """All timings that can be drawn: the objects that may be slow, and the bounds of the amounts."""

    operations: Sequence[OperationName]  # in their order, each repeated by its weight
    streams: Sequence[str]
    links: Sequence[str]
    ranks: int
    most: int
    longest_us: int
    strongest: int

    def __repr__(self) -> str:
        return f"<{len(set(self.operations))} operations, streams {self.streams}, links {self.links}>"

    def timing(self, pick: _Pick) -> tuple[Deviation, ...]:
        """Draw a timing. Zero amounts are left out; of two deviations of the same object the larger one is kept."""
        kinds = self._kinds()
        largest: dict[object, Deviation] = {}
        for _ in range(self.most):
            deviation = self._deviation(kinds[pick(len(kinds) - 1)], pick)
            if deviation is None:
                continue
            target = _what(deviation)
            if target not in largest or _amount(deviation) > _amount(largest[target]):
                largest[target] = deviation
        return tuple(largest.values())

    def _kinds(self) -> list[str]:
        """Return each kind once, in order, then the repetitions, so that shrinking reaches each kind itself."""
        absent = {
            "long": not self.operations,
            "late": not self.operations,
            "stream": not self.streams,
            "link": not self.links,
            "rank": not self.ranks,
        }
        kinds = [kind for kind in _WEIGHTS if not absent.get(kind)]
        return kinds + [kind for kind in kinds for _ in range(_WEIGHTS[kind] - 1)]

    def _deviation(self, kind: str, pick: _Pick) -> Deviation | None:
        if kind == "none":
            return None
        if kind in ("long", "late"):
            longest = self.longest_us.bit_length()
            generous = range(longest // 2 + 1, longest + 1)  # drawn twice as often: large delays reveal most
            exponent = [*range(longest + 1), *generous][pick(longest + len(generous))]
            if exponent == 0:
                return None
            how: Literal["long", "late"] = "long" if kind == "long" else "late"
            return OperationDelay(self.operations[_even(pick, len(self.operations))], how, _US << (exponent - 1))
        if kind == "jitter":
            percent = pick(_MOST_PERCENT.bit_length() - 1)
            return Jitter(1 << percent, pick(_SEEDS - 1)) if percent else None
        factor = pick(self.strongest.bit_length() - 1)
        if factor == 0:
            return None
        if kind == "rank":
            target = f"rank:{_even(pick, self.ranks)}"
        elif kind == "host":
            which = _even(pick, self.ranks + 1)  # 0: all of them
            target = f"host:{which - 1}" if which else "host"
        else:
            names = self.streams if kind == "stream" else self.links
            target = f"{kind}:{names[_even(pick, len(names))]}"
        return Stretch(target, 1 << factor)


def stream_timings(
    subject: Subject | None = None,
    *,
    most: int = 4,
    longest_us: int = _LONGEST_US,
    strongest: int = _STRONGEST,
    operations: Sequence[OperationName] | None = None,
    streams: Sequence[str] | None = None,
    links: Sequence[str] | None = None,
    ranks: int | None = None,
) -> st.SearchStrategy[tuple[Deviation, ...]]:
    """Return a Hypothesis strategy for timings of ``subject``: tuples of up to ``most`` deviations, shrinking to ().

    Each deviation delays one operation (it starts later, or takes longer) by up to ``longest_us`` microseconds, or
    slows one stream, link or rank, one host or all by a factor of up to ``strongest``, or is a jitter. Amounts are
    powers of two. ``operations``, ``streams``, ``links`` and ``ranks`` (their number) default to the subject's. A live
    test has no subject: only the given names, all hosts and a jitter are drawn then.

    Raises :class:`ValueError` for bounds that no timing can have.
    """
    return _timings(_space(subject, most, longest_us, strongest, operations, streams, links, ranks))


def timings_with_choices(subject: Subject) -> st.SearchStrategy[tuple[tuple[Deviation, ...], tuple[int, ...]]]:
    """Return a strategy for ``stream_timings(subject)``, each with its drawn choices, as an example database keeps."""
    return _timings_with_choices(_space(subject))


def draw_timing(
    random: Random,
    subject: Subject,
    *,
    most: int = 4,
    longest_us: int = _LONGEST_US,
    strongest: int = _STRONGEST,
) -> tuple[Deviation, ...]:
    """Draw a timing of ``subject`` by the same decisions as in :func:`stream_timings`, each from ``random``."""
    space = _space(subject, most, longest_us, strongest)
    return space.timing(lambda largest: random.randint(0, largest))


def _space(
    subject: Subject | None,
    most: int = 4,
    longest_us: int = _LONGEST_US,
    strongest: int = _STRONGEST,
    operations: Sequence[OperationName] | None = None,
    streams: Sequence[str] | None = None,
    links: Sequence[str] | None = None,
    ranks: int | None = None,
) -> _Space:
    for name, value, largest in (
        ("most", most, MOST_DEVIATIONS),
        ("longest_us", longest_us, MOST_NS // _US),
        ("strongest", strongest, MOST_FACTOR),
    ):
        if not 1 <= value <= largest:
            raise ValueError(f"{name} is from 1 to {largest}, not {value}")
    if subject is not None:
        operations = subject.operations if operations is None else operations
        streams = subject.streams if streams is None else streams
        links = subject.links if links is None else links
        ranks = subject.world if ranks is None else ranks
    weighted = tuple(item for item in operations or () for _ in range(_TOUCHES_PARAMETER if item.parameter else 1))
    return _Space(weighted, tuple(streams or ()), tuple(links or ()), ranks or 0, most, longest_us, strongest)


@st.composite
def _timings(draw: st.DrawFn, space: _Space) -> tuple[Deviation, ...]:
    return _drawn(draw, space)[0]


@st.composite
def _timings_with_choices(draw: st.DrawFn, space: _Space) -> tuple[tuple[Deviation, ...], tuple[int, ...]]:
    return _drawn(draw, space)


def _drawn(draw: st.DrawFn, space: _Space) -> tuple[tuple[Deviation, ...], tuple[int, ...]]:
    choices: list[int] = []

    def pick(largest: int) -> int:
        if largest == 0:
            return 0  # nothing to decide
        choices.append(draw(st.integers(0, largest)))
        return choices[-1]

    return space.timing(pick), tuple(choices)


def _even(pick: _Pick, size: int) -> int:
    """Draw a number below ``size``, in digits, the highest first, so that all are about equally likely."""
    digits = 1
    while _DIGIT**digits < size:
        digits += 1
    base = round(size ** (1 / digits))
    while base**digits < size:
        base += 1
    number = pick((size - 1) // base ** (digits - 1))
    for _ in range(digits - 1):
        number = number * base + pick(base - 1)
    return number % size  # the digits reach slightly beyond the size


def _what(deviation: Deviation) -> object:
    match deviation:
        case OperationDelay(operation, how, _):
            return operation, how
        case Stretch(what, _):
            return what
        case Jitter():
            return "jitter"


def _amount(deviation: Deviation) -> int:
    match deviation:
        case OperationDelay(_, _, ns):
            return ns
        case Stretch(_, factor):
            return factor
        case Jitter(percent, _):
            return percent

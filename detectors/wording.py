"""Describes the two accesses of a race in the words that all floors above share."""

from __future__ import annotations

from collections.abc import Sequence

from streamrace.detectors.order.races import Side
from streamrace.detectors.streams import stream_named
from streamrace.trace import wording
from streamrace.trace.records import Frame


def access(side: Side) -> str:
    """Return an access without its place: "write by copy_", "free of memory"."""
    return "free of memory" if side.access == "free" else f"{side.access} by {wording.operator(side.kernel)}"


def listed(word: str, side: Side, frames: Sequence[Frame], nowhere: str = "") -> list[str]:
    """Return an access as lines of a list: kernel and stream, then a line for each of ``frames``.

    ``word``: first or second, as the host issued them. ``nowhere``: stands in place of the frames if there are none.
    A function is named without the functions that it is defined in.
    """
    stream = stream_named(side.stream)
    freed = f"the memory is freed: work on {stream} may be given it next"
    access = freed if side.access == "free" else f"{side.access} by {side.kernel} on {stream}"
    shortened = (frame._replace(function=frame.function.rpartition("<locals>.")[2]) for frame in frames)
    places = [wording.frame(frame, path=True) for frame in shortened] or [nowhere] * bool(nowhere)
    return [f"{word:<7}{access}", *(f"  {place}" for place in places)]

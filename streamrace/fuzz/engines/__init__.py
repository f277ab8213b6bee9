"""Defines where the timings of a campaign are executed: in this process, in several, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from streamrace.fuzz.campaign import Share, Trial


class EngineError(Exception):
    """The timings cannot be executed by the requested engine. One sentence."""


Explore = Callable[[Sequence[Share]], Iterator[tuple[Share, Trial]]]
"""Executes the shares; yields each trial with its share as it arrives. Raises :class:`EngineError`."""


def shares(examples: int, workers: int, seconds: float | None, seed: int) -> list[Share]:
    """Distribute the examples evenly; each worker draws from a seed of its own."""
    workers = max(1, min(workers, examples))
    sizes = [examples // workers + (worker < examples % workers) for worker in range(workers)]
    return [Share(seed * 1000 + worker, size, seconds) for worker, size in enumerate(sizes)]

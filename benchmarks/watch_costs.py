"""Times variants of a training step in turn, and their cost against the bare step: for the rows ``watch``."""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from math import sqrt
from statistics import median, quantiles
from typing import Any, NamedTuple

from benchmarks.figures import Figure

TITLES = {
    "again": "the bare step again: the noise of the figures below",
    "watch": "NanWatch, default settings",
    "sums": "NanWatch, checksums=True",
    "anomaly": "torch.autograd.detect_anomaly(check_nan=True)",
    "debug": "transformers' DebugUnderflowOverflow",
}
_CLOCKS = {"cpu": "processor time", "wall": "wall time"}


class Timed(NamedTuple):
    """The seconds of one step: of the clock, of the process on all its cores, and within the watch's hooks."""

    wall: float
    cpu: float
    own: float


Times = dict[str, list[Timed]]  # by variant, round by round


class Own:
    """Times the hooks of the watches that are created while it is entered."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def __enter__(self) -> Own:
        from streamrace.detectors.live.board import Board

        self._guard = Board.guard
        Board.guard = self._timed  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        from streamrace.detectors.live.board import Board

        Board.guard = self._guard  # type: ignore[method-assign]

    @property
    def _timed(self) -> Callable[..., Any]:
        """Return the replacement of ``Board.guard``: its hooks run with a clock around them."""
        guard = self._guard

        def timed(board: Any, hook: Callable[..., None]) -> Callable[..., None]:
            guarded = guard(board, hook)

            def called(*args: Any, **kwargs: Any) -> None:
                began = time.perf_counter()
                self._depth += 1
                try:
                    guarded(*args, **kwargs)
                finally:
                    self._depth -= 1
                    if not self._depth:  # a hook may call another one
                        self.seconds += time.perf_counter() - began

            return called

        return timed


def rounds(
    step: Callable[[], None],
    variants: Mapping[str, Callable[[], AbstractContextManager[Any]]],
    count: int,
    said: Callable[[int], None],
    settled: Callable[[], None] = lambda: None,
    *,
    compared: Collection[str] = (),
    few: int = 0,
) -> Times:
    """Time ``count`` rounds after a warm-up round; ``compared`` variants take part only in the first ``few`` of them.
    ``settled``: waits until the device and the ranks are idle.
    """
    times: Times = defaultdict(list)
    with Own() as own:
        for round_ in range(count + 1):
            said(round_)
            names = [name for name in variants if round_ <= few or name not in compared]
            turn = round_ % len(names)
            for name in names[turn:] + names[:turn]:
                gc.collect()
                with variants[name]():
                    settled()
                    own.seconds = 0.0
                    began, began_cpu = time.perf_counter(), time.process_time()
                    step()
                    settled()
                    taken = Timed(time.perf_counter() - began, time.process_time() - began_cpu, own.seconds)
                if round_:
                    times[name].append(taken)
    return dict(times)


def costs(
    row: str, times: Times, limits: Mapping[str, float], where: str = "", *, clock: str = "cpu"
) -> Iterator[Figure]:
    """Yield costs in % of the bare step of the same round, by ``clock``; the watch's own in % of its step's rest."""
    other = next(name for name in _CLOCKS if name != clock)
    for name in times:
        if name != "bare":
            beside = f"{_CLOCKS[other]}: {_Against(times, name, other)}"
            cost = _Against(times, name, clock)
            note = f"{_CLOCKS[clock]}, median of {len(times[name])} rounds {cost.noise}; {beside}"
            yield Figure(row, f"{TITLES[name]}{where}", cost.median, "%", limits.get(name), note)
    for name in [name for name in times if any(one.own for one in times[name])]:
        own = [100 * one.own / (one.wall - one.own) for one in times[name]]
        note = f"wall time, median of {len(own)} steps: {min(own):.2f} to {max(own):.2f}"
        what = f"{TITLES[name]}{where}: time in the watch's own code, of a step"
        yield Figure(row, what, median(own), "%", None, note)


class _Against:
    """A variant's steps against the bare steps of the same rounds, in %."""

    def __init__(self, times: Times, name: str, clock: str) -> None:
        pairs = zip(times[name], times["bare"], strict=False)  # compared variants have only the first rounds
        found = [100 * (getattr(one, clock) / getattr(bare, clock) - 1) for one, bare in pairs]
        self.median = median(found)
        low, _, high = quantiles(found, n=4, method="inclusive")
        error = 1.2533 * (high - low) / 1.349 / sqrt(len(found))  # of the median, from the interquartile range
        self.noise = f"± {error:.1f}, half of them {low:.1f} to {high:.1f}"

    def __str__(self) -> str:
        return f"{self.median:.1f} {self.noise}"

"""Timings under which the same training runs: as options of a live run, and as timings of a replay.

They move different things: the network, the host, one stream, one kind of kernel, one rank, everything at random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from streamrace.device.hardware import load_profile
from streamrace.device.tokens import Jitter
from streamrace.replay.device_timing import DeviceTiming

TIMINGS: dict[str, dict[str, Any]] = {
    "paper": {"hardware": "a100-12.5gbps"},
    "fast network": {"hardware": "a100-100gbps"},
    "h100": {"hardware": "h100"},
    "launch bound": {"stands_for": "itself"},
    "slow compute": {"stands_for": "itself", "slow": {"stream:compute": 300}},
    "slow copies": {"slow": {"kernel:aten::copy_": 1000}},
    "slow links": {"slow": {"link:*": 50}},
    "slow rank": {"slow": {"rank:1": 20, "host:2": 5}},
    "jitter": {"jitter": 3.0, "timing_seed": 7},
}

_SMALL = 1e-3  # of what a kernel of a full-size model takes: next to nothing beside a launch


def _on(hardware: str, **slow: float) -> Callable[[DeviceTiming], DeviceTiming]:
    return lambda timing: timing.on(replace(timing.by_profile, profile=load_profile(hardware), slow=slow))


def _slow(**slow: float) -> Callable[[DeviceTiming], DeviceTiming]:
    return lambda timing: timing.on(replace(timing.by_profile, slow=slow))


# The same of a recording made with "paper": kernels keep what they took there, and are stretched instead.
RETIMED: dict[str, Callable[[DeviceTiming], DeviceTiming]] = {
    "paper": lambda timing: timing,
    "fast network": _on("a100-100gbps"),
    "h100": _on("h100", **{"stream:*": 0.4}),
    "launch bound": _slow(**{"stream:*": _SMALL, "link:*": _SMALL}),
    "slow compute": _slow(**{"stream:compute": 300 * _SMALL, "stream:all-gather": _SMALL, "link:*": _SMALL}),
    "slow copies": _slow(**{"kernel:aten::copy_": 1000}),
    "slow links": _slow(**{"link:*": 50}),
    "slow rank": _slow(**{"rank:1": 20, "host:2": 5}),
    "jitter": lambda timing: replace(timing, jitter=Jitter(300, 7)),
}

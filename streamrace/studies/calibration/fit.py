"""Fits the few figures of a profile to kernels that ran, as medians, so that outliers count little.

The figures are fitted in turn, each from the kernels that it decides: the shortest kernel from those with few bytes,
memory from those with many, products and attention from those that arithmetic bounds. For each such kernel the figure
is computed at which the model would predict its duration; the result is the median of these, weighted by the duration
that the model predicts: long kernels weigh more than short ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from streamrace.device.hardware import Profile
from streamrace.device.hardware.kernels import GPUS, Kernels
from streamrace.scenarios.base import ScenarioError
from streamrace.studies.calibration.kineto import ProfilerTrace, Ran

_ROUNDS = 8  # each figure is fitted with the others held fixed: more rounds change nothing
_SMALL, _LARGE = 1 << 15, 1 << 22  # bytes: kernels of negligible and of dominant data transfer
_BOUND = 1.2  # ratio of arithmetic to memory, from which on arithmetic decides
_STARTS = 3.0  # times as long as the shortest kernel


class KindOfKernel(NamedTuple):
    """A kind of kernel: number of calls, ms in the trace, by the base profile and by the new one, and the errors.

    ``median_error``: of a call, absolute, over the trace's. ``used``: number of calls that a figure was fitted to.
    """

    kind: str
    calls: int
    used: int
    theirs_ms: float
    base_ms: float
    ours_ms: float
    error: float
    median_error: float


class Calibrated(NamedTuple):
    """A fitted profile. ``fitted``: figures, each with its number of calls; ``kept``: why others are the base's."""

    profile: Profile
    fitted: Mapping[str, tuple[float, int]]
    kept: Mapping[str, str]
    rows: tuple[KindOfKernel, ...]


def calibrate(recorded: ProfilerTrace, base: Profile, name: str) -> Calibrated:
    """Fit ``base`` to the kernels of ``recorded``. Raises ScenarioError if nothing can be fitted."""
    if base.gpu is None:
        raise ScenarioError(
            f"profile {base.name} names no GPU whose kernels are known ({', '.join(GPUS)}): choose another --base"
        )
    if not recorded.ran:
        raise ScenarioError("none of the trace's kernels belongs to an operator whose work is known: nothing is fitted")
    fitted: dict[str, tuple[float, int]] = {}
    unfitted: dict[str, str] = {}
    profile, used = base, dict[str, int]()
    for _ in range(_ROUNDS):
        for figure, (kind, of, why) in _figures().items():
            samples = of(recorded.ran, _kernels(profile))
            used[kind] = max(used.get(kind, 0), len(samples)) if figure != "kernel_us" else used.get(kind, 0)
            if not samples:
                unfitted[figure] = why
                continue
            unfitted.pop(figure, None)
            value = _median(samples)
            fitted[figure] = (value, len(samples))
            changed: dict[str, Any] = {figure: value}
            profile = replace(profile, **changed)
    if recorded.launches:
        fitted["launch_us"] = (float(np.median(recorded.launches)), len(recorded.launches))
        profile = replace(profile, launch_us=fitted["launch_us"][0])
    else:
        unfitted["launch_us"] = "the trace has no cudaLaunchKernel"
    return Calibrated(replace(profile, name=name), fitted, unfitted, _rows(recorded.ran, base, profile, used))


Found = Sequence[tuple[float, float]]  # the figure implied by a call, and the call's weight


def _shortest(ran: Iterable[Ran], kernels: Kernels) -> Found:
    small = [call for call in ran if call.kind == "memory" and call.signature.nbytes <= _SMALL]
    beside = [call.us - (kernels.nanoseconds(call.signature) - kernels.gpu.floor_ns) / 1000 for call in small]
    return [(max(us, 0.1), 1.0) for us in beside]


def _memory(ran: Iterable[Ran], kernels: Kernels) -> Found:
    return _ratio(
        [call for call in ran if call.kind == "memory" and call.signature.nbytes >= _LARGE], kernels, kernels.gpu.memory
    )


def _host(ran: Iterable[Ran], kernels: Kernels) -> Found:
    large = [call for call in ran if call.kind == "host" and call.signature.nbytes >= _LARGE // 4]
    return _ratio(large, kernels, kernels.gpu.host_bytes_per_ns)


def _arithmetic(kind: str, figure: Callable[[Kernels], float]) -> Callable[[Iterable[Ran], Kernels], Found]:
    def of(ran: Iterable[Ran], kernels: Kernels) -> Found:
        bound = []
        for call in ran:
            if call.kind == kind:
                total, part = kernels.nanoseconds(call.signature), kernels.arithmetic(call.signature)
                memory = kernels.bytes_alone(call.signature)
                if part > _BOUND * memory and total > _STARTS * kernels.gpu.floor_ns:
                    bound.append(call)
        return _ratio(bound, kernels, figure(kernels))

    return of


def _ratio(ran: Iterable[Ran], kernels: Kernels, now: float) -> Found:
    """Return the rate for each call at which the model would predict the call's duration beyond its start."""
    samples = []
    for call in ran:
        measured = call.us * 1000 - kernels.gpu.floor_ns
        modelled = kernels.nanoseconds(call.signature) - kernels.gpu.floor_ns
        if measured > 0:
            samples.append((now * modelled / measured, modelled))  # by our duration: a delayed call weighs no more
    return samples


def _figures() -> Mapping[str, tuple[str, Callable[[Iterable[Ran], Kernels], Found], str]]:
    mask = "whose mask is recorded (Concrete Inputs)"
    forward = _arithmetic("attention", lambda kernels: kernels.gpu.attention)
    backward = _arithmetic("attention backward", lambda kernels: kernels.gpu.attention_backward)
    product = _arithmetic("matmul", lambda kernels: kernels.gpu.matmul)
    return {
        "kernel_us": ("memory", _shortest, "no elementwise kernel of at most 32 KiB"),
        "memory_fraction": ("memory", _memory, "no elementwise kernel or copy of at least 4 MiB"),
        "host_gbytes_per_s": ("host", _host, "no copy of at least 1 MiB from or to pinned memory"),
        "matmul_fraction": ("matmul", product, "no product of aligned rows that arithmetic bounds"),
        "attention_fraction": ("attention", forward, f"no flash attention {mask}"),
        "attention_backward_fraction": ("attention backward", backward, f"no backward of flash attention {mask}"),
    }


def _median(samples: Found) -> float:
    """Return the weighted median."""
    values, weights = (np.array(column) for column in zip(*samples, strict=True))
    order = np.argsort(values, kind="stable")
    passed = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(passed, passed[-1] / 2)])


def _kernels(profile: Profile) -> Kernels:
    kernels = Kernels.of(profile)
    assert kernels is not None
    return kernels


def _rows(ran: Sequence[Ran], base: Profile, profile: Profile, used: Mapping[str, int]) -> tuple[KindOfKernel, ...]:
    rows = []
    before, after = _kernels(base), _kernels(profile)
    for kind in sorted({call.kind for call in ran}):
        calls = [call for call in ran if call.kind == kind]
        measured = np.array([call.us for call in calls])
        modelled = np.array([after.nanoseconds(call.signature) / 1000 for call in calls])
        first = sum(before.nanoseconds(call.signature) for call in calls) / 1e6
        total, error = float(measured.sum()), np.abs(modelled / np.maximum(measured, 1e-3) - 1)
        rows.append(
            KindOfKernel(
                kind,
                len(calls),
                used.get(kind, 0),
                total / 1000,
                first,
                modelled.sum() / 1000,
                modelled.sum() / total - 1 if total else 0.0,
                float(np.median(error)),
            )
        )
    return tuple(rows)

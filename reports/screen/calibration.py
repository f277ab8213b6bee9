"""Prints a calibration: the figures, the error of each kind of kernel, and the kernels that could not be placed.

Of a host: its two figures, and the error of each program's layer.
"""

from __future__ import annotations

from rich.console import Console

from streamrace.studies.calibration import Calibrated, ProfilerTrace
from streamrace.studies.calibration.host import HostPrice
from streamrace.studies.table import Column, Table

_LEFT = 5  # reasons that are printed


def show(console: Console, recorded: ProfilerTrace, calibrated: Calibrated) -> None:
    """Print the summary, the figures, the errors, and the kernels that were not placed."""
    placed = len(recorded.ran)
    left = sum(recorded.left.values())
    console.print(
        f"{recorded.device or 'A GPU'}: {recorded.kernels:,} kernels and copies, {left:,} of them not placed; "
        f"{placed:,} calls of operators were.",
        highlight=False,
    )
    gpu = calibrated.profile.gpu or ""
    if recorded.device and gpu.upper() not in recorded.device.upper():
        console.print(f"The base is of another GPU ({gpu}): its peak and its memory's rate stay.", style="yellow")
    for figure, (value, calls) in calibrated.fitted.items():
        console.print(f"  {figure} = {value:.4g}, from {calls:,}", highlight=False)
    for figure, why in calibrated.kept.items():
        console.print(f"  {figure} stays as it is: {why}", highlight=False)
    console.print(_table(calibrated))
    worst = sorted(recorded.left.items(), key=lambda item: (-item[1], item[0]))
    for why, count in worst[:_LEFT]:
        console.print(f"  not placed: {count:,} of {why}", highlight=False, markup=False)
    if len(worst) > _LEFT:
        rest = sum(count for _, count in worst[_LEFT:])
        console.print(f"  not placed: {rest:,} for {len(worst) - _LEFT} other reasons", highlight=False)


def _table(calibrated: Calibrated) -> Table:
    columns = [
        "kernels",
        Column("calls", ",.0f"),
        Column("fitted to", ",.0f"),
        Column("theirs ms", ".2f"),
        Column("base ms", ".2f"),
        Column("ours ms", ".2f"),
        Column("error", "+.1%"),
        Column("of a call (median)", ".1%"),
    ]
    rows = [
        [row.kind, row.calls, row.used, row.theirs_ms, row.base_ms, row.ours_ms, row.error, row.median_error]
        for row in calibrated.rows
    ]
    return Table("The trace's kernels, by the base and by the new profile", columns, rows)


def show_host(console: Console, price: HostPrice) -> None:
    """Print what a layer costs under each framework, the frameworks that were left out, and the figures."""
    columns = [
        "program",
        Column("launches", ",.0f"),
        Column("calls", ",.0f"),
        Column("measured ms", ".2f"),
        Column("by both figures", "+.0%"),
    ]
    rows = [
        [layer.framework, layer.launches, layer.calls, layer.measured_us / 1000, price.error(layer)]
        for layer in price.layers
    ]
    console.print(Table("A layer and a micro-batch, forward and backward", columns, rows))
    for framework, why in price.left_out.items():
        console.print(f"  left out: {framework} ({why})", highlight=False, markup=False)
    console.print(f"  launch_us = {price.launch_us:.4g}, call_ns = {price.call_ns:.4g}", highlight=False)

"""Implements ``diverge``: compares two recordings of the live watch, with verdict, tables, JSON and a curve."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from streamrace.reports.screen.console import Terminal
from streamrace.studies.table import Cell, Column, Table
from streamrace.trace.untrusted import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from streamrace.detectors.values.recording_comparison import RecordedDivergence

_ROWS = 12  # steps shown in full
_BLUE, _ORANGE, _GREY, _RED = "#0060a8", "#c05a00", "#6b6b6b", "#b3001b"


def _picture(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and path.suffix.lower() not in (".png", ".svg"):
        raise click.BadParameter(f"{path} is neither .png nor .svg")
    return path


@click.command()
@click.argument("reference", type=click.Path(path_type=Path))
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print only the comparison, as JSON.")
@click.option(
    "--plot", type=click.Path(path_type=Path), callback=_picture, metavar="FILE", help="Draw the growth: .png or .svg."
)
def diverge(reference: Path, run: Path, as_json: bool, plot: Path | None) -> None:
    """Find where RUN first differs from REFERENCE. Both are folders that the NaN watch recorded.

    Says whether another order of summation explains the first difference, and how differences grow.
    Exit status: 0 no difference, 1 the runs differ, 2 a folder that cannot be read or compared.
    """
    from streamrace.detectors.values.recording_comparison import compare
    from streamrace.detectors.values.recordings import load

    recordings = {folder: load(folder) for folder in (reference, run)}
    divergence = compare(recordings[reference], recordings[run])
    if plot is not None:
        draw(divergence, plot)
    if as_json:
        click.echo(json.dumps(divergence.as_dict(), indent=2, allow_nan=False))
    else:
        console = Terminal()
        show(divergence, console)
        for folder, recording in recordings.items():
            for rank in recording.truncated:
                line = f"Rank {rank} of {folder} was killed while it wrote: its last line is left out."
                console.print(_text(line), highlight=False)
        if plot is not None:
            console.print(_text(f"Plot: {plot}"), highlight=False)
    raise SystemExit(1 if divergence.diverged else 0)


def show(divergence: RecordedDivergence, console: Console) -> None:
    """Print the verdict, the first difference, the growth."""
    colour = "green" if not divergence.diverged else "yellow" if divergence.explained else "red"
    console.print(_text(divergence.sentence(), f"bold {colour}"))
    if divergence.what:
        console.print(_first(divergence))
    if divergence.unmatched and divergence.what:
        console.print(f"{divergence.unmatched} values are in only one of the recordings.", highlight=False)
    if divergence.diverged:
        console.print(_growth(divergence))


def _first(divergence: RecordedDivergence) -> Table:
    place = f"{divergence.step}, micro-batch {divergence.micro_batch}, {divergence.phase}"
    rows = [("step", place), ("rank", ", ".join(map(str, divergence.ranks))), ("what", divergence.what)]
    unit = ""
    if divergence.parameter:
        rows += [("parameter", divergence.parameter), ("parts that differ", ", ".join(map(str, divergence.parts)))]
        unit = "largest value, "
    rows += [(f"{unit}reference", f"{divergence.reference:.9g}"), (f"{unit}run", f"{divergence.value:.9g}")]
    if divergence.parameter and math.isnan(divergence.reference) and math.isnan(divergence.value):
        del rows[-2:]  # not measured
    rows.append(("explained by the order of sums", f"{'yes' if divergence.explained else 'no'}: {divergence.why}"))
    return Table("first difference", ["", ""], [(name, _text(value).plain) for name, value in rows], sides=True)


def _growth(divergence: RecordedDivergence) -> Table:
    indices = abridged([step for step, *_ in divergence.growth], divergence.step)
    left_out = len(divergence.growth) - len(indices)
    title = "growth: largest relative differences by step" + (f" ({left_out} steps left out)" if left_out else "")
    rows = []
    for index in indices:
        step, loss, norm, uses = divergence.growth[index]
        tone = "strong" if step == divergence.step else ""
        rows.append([Cell(text, tone) for text in (str(step), _size(loss), _size(norm), str(uses))])
    columns = [Column(name, right=True) for name in ("step", "loss", "gradient norm", "uses that differ")]
    return Table(title, columns, rows)


def abridged(steps: Sequence[int], first: int) -> list[int]:
    """Return the rows to show: all if few, else the powers of two, the last, and the step ``first``."""
    last = len(steps) - 1
    if last < _ROWS:
        return list(range(last + 1))
    powers = {2**power - 1 for power in range(last.bit_length() + 1)}
    return [index for index, step in enumerate(steps) if index in powers or index == last or step == first]


def _size(value: float) -> str:
    return "not finite" if math.isnan(value) else "equal" if value == 0 else f"{value:.2g}"


def _text(line: str, style: str = "") -> Text:
    """Return text without control characters and markup: names come from a file, and each must stay on one line."""
    return Text(visible(line, lines=False), style)


def draw(divergence: RecordedDivergence, path: Path) -> None:
    """Draw the growth as curves, relative differences on a logarithmic axis. The file is reproducible.

    Raises :class:`click.ClickException` if it cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # The machine's settings, fonts and date must not affect the file.
    look = {"font.family": "DejaVu Sans", "svg.hashsalt": "streamrace"}
    with rc_context({**look, "axes.spines.top": False, "axes.spines.right": False}):  # type: ignore[dict-item]
        figure = Figure(figsize=(9, 6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        # A dollar sign in a name must not start a formula.
        above.set_title(_title(divergence), loc="left", fontsize=12, fontweight="bold", pad=22, parse_math=False)
        _curves(above, divergence)
        _uses(below, divergence)
        try:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
        except OSError as error:
            raise click.ClickException(f"cannot draw {path}: {error.strerror}") from error


def _title(divergence: RecordedDivergence) -> str:
    if not divergence.what:
        return "The runs differ nowhere" if not divergence.diverged else "The runs do not record the same values"
    name = divergence.parameter or divergence.what
    name = name if len(name) <= 40 else f"…{name[-39:]}"
    verdict = "Reordered sums may explain it" if divergence.explained else "Reordered sums do not explain it"
    return f"{_text(f'First difference: {divergence.phase} of step {divergence.step}, {name}').plain}\n{verdict}"


def _curves(axes: Axes, divergence: RecordedDivergence) -> None:
    """Draw the curves. Equal steps have no point, as a logarithmic axis has no 0; non-finite steps are at the top."""
    steps = [row[0] for row in divergence.growth]
    curves = [("loss", _BLUE, "o", [row[1] for row in divergence.growth])]
    curves.append(("gradient norm", _ORANGE, "s", [row[2] for row in divergence.growth]))
    finite_bounds = [bound for bound in divergence.bounds if 0 < bound < math.inf]
    sizes = [size for *_, values in curves for size in values if size > 0] + finite_bounds + [0.1]
    top = 10 ** (math.ceil(math.log10(max(sizes))) + 1)
    axes.set_yscale("log")
    axes.set_ylim(10 ** (math.floor(math.log10(min(sizes))) - 0.3), top * 3)
    for (name, colour, marker, values), bound in zip(curves, divergence.bounds, strict=True):
        points = [value if value > 0 else math.nan for value in values]
        dots = {"marker": marker, "markersize": 4 if len(steps) <= 200 else 0}
        axes.plot(steps, points, color=colour, linewidth=1.4, label=name, **dots)  # type: ignore[arg-type]
        if lost := [step for step, value in zip(steps, values, strict=True) if math.isnan(value)]:
            axes.plot(lost, [top] * len(lost), "x", color=colour, label=f"{name}: finite in one run only")
        if bound in finite_bounds:
            axes.axhline(bound, color=colour, linestyle=(0, (4, 3)), linewidth=1)
            above = bound == max(finite_bounds)  # the other label is below its line: they never overlap
            axes.text(
                *(0.005, bound, f" as a first difference, a {name} up to {bound:.1g} is explained"),
                transform=axes.get_yaxis_transform(),  # x from 0 to 1, y in data
                **{"color": colour, "fontsize": 8, "va": "bottom" if above else "top"},  # type: ignore[arg-type]
            )
    axes.set_ylabel("largest relative difference (no unit)")
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    if divergence.what:
        label = f" first difference, step {divergence.step}"
        right = divergence.step > (steps[0] + steps[-1]) / 2
        side = {"ha": "right" if right else "left", "va": "bottom", "color": _RED}
        axes.text(divergence.step, 1.0, label, transform=axes.get_xaxis_transform(), **side)  # type: ignore[arg-type]
        axes.axvline(divergence.step, color=_RED, linewidth=1)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=4, frameon=False, fontsize=9)


def _uses(axes: Axes, divergence: RecordedDivergence) -> None:
    from matplotlib.ticker import MaxNLocator

    steps, counts = [row[0] for row in divergence.growth], [row[3] for row in divergence.growth]
    axes.step(steps, counts, where="mid", color=_GREY, linewidth=1.4)
    axes.set_ylim(0, max(max(counts) * 1.1, 1))
    axes.set_ylabel("uses that differ\n(count)")
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.set_xlim(steps[0] - 0.5, steps[-1] + 0.5)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    if divergence.what:
        axes.axvline(divergence.step, color=_RED, linewidth=1)

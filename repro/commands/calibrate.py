"""Implements ``calibrate``: fits a hardware profile to a trace of one's own GPU."""

from __future__ import annotations

from pathlib import Path

import click

from streamrace.reports.screen.console import Terminal


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--base", default="a100-100gbps", help="Profile whose other figures stay. [default: a100-100gbps]")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("mine.toml"),
    help="The new profile, for --hardware. [default: mine.toml]",
)
@click.option("--overwrite", is_flag=True, help="Replace that file.")
def calibrate(trace: Path, base: str, out: Path, overwrite: bool) -> None:
    """A hardware profile of your own GPU, from a trace of one step by torch's profiler.

    TRACE: what export_chrome_trace wrote of a step on one GPU (JSON, may be gzipped), recorded with
    profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True).

    Fits the few figures by which kernels are timed, tells how far each kind of kernel is off then and what could not
    be placed, and writes a profile that --hardware takes.
    """
    from streamrace.device.hardware import load_profile
    from streamrace.reports.screen import calibration as screen
    from streamrace.scenarios.base import ScenarioError
    from streamrace.studies import calibration

    if out.suffix != ".toml":
        raise ScenarioError(f"a profile's file ends in .toml: --out {out} does not")
    if out.exists() and not overwrite:
        raise ScenarioError(f"{out} exists already: choose another --out, or replace it with --overwrite")
    recorded = calibration.read(trace)
    result = calibration.calibrate(recorded, load_profile(base), out.stem)
    where = recorded.device or "a GPU"
    text = calibration.written(
        result.profile,
        origin=f"streamrace calibrate {trace.name} --base {base}: {len(recorded.ran):,} calls on {where}",
        notes={figure: f"from {calls:,} of the trace" for figure, (_, calls) in result.fitted.items()},
    )
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"cannot write {out}: {error.strerror or error}") from error
    load_profile(str(out))
    console = Terminal()
    screen.show(console, recorded, result)
    console.print(f"File: {out}", highlight=False, markup=False, soft_wrap=True)

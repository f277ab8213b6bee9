"""Implements ``calibrate``: fits a hardware profile to a trace of one's own GPU."""

from __future__ import annotations

from pathlib import Path

import click

from streamrace.reports.screen.console import Terminal


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--base", default="a100-100gbps", help="Profile that gives all other figures. [default: a100-100gbps]")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("mine.toml"),
    help="The file of the new profile, for --hardware. [default: mine.toml]",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
def calibrate(trace: Path, base: str, out: Path, overwrite: bool) -> None:
    """Make a hardware profile of your own GPU from a trace of one step by torch's profiler.

    TRACE is a file that export_chrome_trace wrote for a step on one GPU (JSON, may be gzipped), recorded with
    profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True).

    Fits the few figures that time the kernels, prints the error of each kind of kernel and the operators that could
    not be used, and writes a profile for --hardware.
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

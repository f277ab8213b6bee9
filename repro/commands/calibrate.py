"""Implements ``calibrate``: fits a hardware profile to a trace of one's own GPU, or to the time of one's own host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from streamrace.reports.screen.console import Terminal


@click.command()
@click.argument("trace", type=click.Path(path_type=Path), required=False)
@click.option(
    "--host",
    is_flag=True,
    help="In place of TRACE: measure launch_us and call_ns, the times of this machine's host, on its GPU.",
)
@click.option("--base", default="a100-100gbps", help="Profile that gives all other figures. [default: a100-100gbps]")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("mine.toml"),
    help="The file of the new profile, for --hardware. [default: mine.toml]",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
def calibrate(trace: Path | None, host: bool, base: str, out: Path, overwrite: bool) -> None:
    """Make a hardware profile of your own machine: of its GPU from a trace of one step, or of its host.

    TRACE is a file that export_chrome_trace wrote for a step on one GPU (JSON, may be gzipped), recorded with
    profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True).

    Fits the few figures that time the kernels, prints the error of each kind of kernel and the operators that could
    not be used, and writes a profile for --hardware. With --host, in some minutes: trains a small Llama under plain
    torch, FSDP2 and DeepSpeed, counts its launches and its calls of Python functions on the simulated GPU, measures
    the processor's time on this machine's GPU, and fits the host's two figures.
    """
    from streamrace.device.hardware import load_profile
    from streamrace.scenarios.base import ScenarioError

    if (trace is None) != host:
        raise click.UsageError("calibrate takes a TRACE or --host, one of them")
    if out.suffix != ".toml":
        raise ScenarioError(f"a profile's file ends in .toml: --out {out} does not")
    if out.exists() and not overwrite:
        raise ScenarioError(f"{out} exists already: choose another --out, or replace it with --overwrite")
    console = Terminal()
    text = _of_host(console, base) if trace is None else _of_trace(console, trace, base, out.stem)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"cannot write {out}: {error.strerror or error}") from error
    load_profile(str(out))
    console.print(f"File: {out}", highlight=False, markup=False, soft_wrap=True)


def _of_trace(console: Console, trace: Path, base: str, name: str) -> str:
    from streamrace.device.hardware import load_profile
    from streamrace.reports.screen import calibration as screen
    from streamrace.studies import calibration

    recorded = calibration.read(trace)
    result = calibration.calibrate(recorded, load_profile(base), name)
    screen.show(console, recorded, result)
    where = recorded.device or "a GPU"
    return calibration.written(
        result.profile,
        origin=f"streamrace calibrate {trace.name} --base {base}: {len(recorded.ran):,} calls on {where}",
        notes={figure: f"from {calls:,} of the trace" for figure, (_, calls) in result.fitted.items()},
    )


def _of_host(console: Console, base: str) -> str:
    import torch

    from streamrace.device.hardware import load_profile
    from streamrace.reports.screen import calibration as screen
    from streamrace.repro.commands.progress import counting
    from streamrace.scenarios.base import ScenarioError
    from streamrace.studies import calibration
    from streamrace.studies.calibration import host

    profile = load_profile(base)
    if not torch.cuda.is_available():
        raise ScenarioError(
            "torch sees no GPU here, and --host measures programs on one: run it on a machine with a GPU, or take the "
            "figures that were measured on an EPYC 7003, with --host epyc-7003 of dry and plan"
        )
    with counting(console) as progress:
        price = host.measure(progress=progress)
    screen.show_host(console, price)
    return calibration.written(
        replace(profile, launch_us=price.launch_us, call_ns=price.call_ns),
        origin=f"streamrace calibrate --host --base {base}: the host with {torch.cuda.get_device_name()}",
        notes=dict.fromkeys(("launch_us", "call_ns"), f"from a layer in each of {len(price.layers)} programs"),
    )

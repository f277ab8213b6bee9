"""Measures the price of this machine's host with its GPU: microseconds of a launch, nanoseconds of a call of Python.

For each framework of :mod:`streamrace.scenarios.host_program`: the launches and the calls of Python functions that a
layer costs in a micro-batch, counted on the simulated GPU, and the processor time that it takes on the real one. Both
figures are fitted to these.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streamrace import checkout
from streamrace.device.hardware import load_profile
from streamrace.process import lifetime
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.host_program import ACCUMULATED, FRAMEWORKS, SAID
from streamrace.studies.calibration.profiles import written
from streamrace.studies.process_pool import OnProgress, quiet
from streamrace.trace.files import TraceReader
from streamrace.trace.records import Collective, HostStep, Launch

_PROGRAM = "streamrace.scenarios.host_program"
_FEW, _MANY = 2, 8  # layers
_COUNTED, _TIMED = 4, 40  # steps: each costs the same calls, and the fastest of many is least disturbed
_ALONE = {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0", "OMP_NUM_THREADS": "1",
}  # fmt: skip


class LayerCost(NamedTuple):
    """A layer's launches, calls of Python functions and microseconds of the processor, in a micro-batch."""

    framework: str
    launches: float
    calls: float
    measured_us: float


class HostPrice(NamedTuple):
    """The fitted figures. ``left_out``: why a framework could not be measured, by name."""

    launch_us: float
    call_ns: float
    layers: Sequence[LayerCost]
    left_out: Mapping[str, str]

    def error(self, layer: LayerCost) -> float:
        """Return the relative error of the layer's time by both figures."""
        return (layer.launches * self.launch_us + layer.calls * self.call_ns / 1000) / layer.measured_us - 1


def measure(*, progress: OnProgress = quiet) -> HostPrice:
    """Measure every framework that runs here, and fit. Raises ScenarioError if that does not give both figures."""
    layers, left_out = [], {}
    for done, framework in enumerate(FRAMEWORKS, 1):
        try:
            few, many = (_on_gpu(framework, count) for count in (_FEW, _MANY))
            layers.append(LayerCost(framework, *counted(framework), (many - few) / (_MANY - _FEW)))
        except _Failed as failed:
            left_out[framework] = str(failed)
        progress(done, len(FRAMEWORKS), framework)
    return fit(layers, left_out)


def counted(framework: str) -> tuple[float, float]:
    """Return the launches and the calls of Python functions that a layer costs in a micro-batch."""
    with tempfile.TemporaryDirectory() as folder:
        few, many = (_counts(framework, layers, Path(folder)) for layers in (_FEW, _MANY))
    layers = (_MANY - _FEW) * _COUNTED * ACCUMULATED
    return (many[0] - few[0]) / layers, (many[1] - few[1]) / layers


def fit(layers: Sequence[LayerCost], left_out: Mapping[str, str]) -> HostPrice:
    """Fit both figures by least squares of the relative errors. Raises ScenarioError if they are not determined."""
    if len(layers) < 2:
        why = "; ".join(f"{framework}: {reason}" for framework, reason in left_out.items())
        raise ScenarioError(f"two figures need two programs, and {len(layers)} ran ({why})")
    counts = np.array([(layer.launches, layer.calls) for layer in layers])
    measured = np.array([[layer.measured_us] for layer in layers])
    launch_us, call_us = (float(figure) for figure in np.linalg.lstsq(counts / measured, np.ones(len(layers)))[0])
    if min(launch_us, call_us) <= 0:
        raise ScenarioError("the measured times do not give both figures: measure again while no other job runs")
    return HostPrice(launch_us, call_us * 1000, layers, left_out)


class _Failed(Exception):
    """The program failed. The last line that it printed."""


def _on_gpu(framework: str, layers: int) -> float:
    """Return the processor time of a micro-batch, in microseconds."""
    return _run(lifetime.module(_PROGRAM, framework, str(layers), str(_TIMED)))


def _counts(framework: str, layers: int, folder: Path) -> tuple[int, int]:
    """Return the launches and the calls of all measured micro-batches."""
    trace, hardware = folder / "counted.trace", folder / "priced.toml"
    priced = replace(load_profile("a100-100gbps"), call_ns=1.0)  # without a price no call is counted
    hardware.write_text(written(priced, origin="Counts calls", notes={}), encoding="utf-8")
    words = ["--dry", "--hardware", str(hardware), "--trace", str(trace), "-m", _PROGRAM, framework, str(layers)]
    _run(lifetime.module("streamrace.device", *words, str(_COUNTED)))
    launches, calls, marks = 0, 0, []
    with closing(TraceReader(trace)) as reader:
        for record in reader.read():
            if isinstance(record, HostStep):
                calls += record.calls
            elif isinstance(record, (Launch, Collective)):
                launches += 1
                if "frac" in record.kernel:
                    marks.append((launches, calls))
    (launched, called), (launches, calls) = marks
    return launches - launched, calls - called


def _run(command: list[str]) -> float:
    """Return what the program prints. How it ends is no matter then: torch's threads may abort a process at its end."""
    environment = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    path = os.pathsep.join(part for part in (environment.get("PYTHONPATH"), str(checkout.IMPORTED_FROM)) if part)
    variables = environment | {"PYTHONPATH": path} | _ALONE
    done = subprocess.run(
        lifetime.command(command), env=variables, capture_output=True, text=True, errors="replace", check=False
    )
    for line in done.stdout.splitlines():
        if line.startswith(SAID):
            return float(line.removeprefix(SAID))
    lines = done.stderr.strip().splitlines()
    raise _Failed(lines[-1] if lines else f"it ended with {done.returncode}")

"""Measures the price of the host: ``python -m benchmarks.host``, without a GPU, in some minutes.

For each framework: the launches and the calls of Python functions that a layer costs in a micro-batch, counted on the
simulated GPU; the processor time of the same program on torch's real CUDA build over fake CUDA libraries
(``tests/real_build``), whose kernels and collectives do nothing. Two figures are fitted to these: nanoseconds of a
launch and of a call, for ``facts.toml`` and the hardware profiles. The real driver's part of a launch is not measured.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.device_rows import shell
from benchmarks.host.program import ACCUMULATED, FRAMEWORKS, SAYS, STEPS
from streamrace.device import hardware
from streamrace.trace.files import TraceReader
from streamrace.trace.records import Collective, HostStep, Launch
from tests.real_build import building, running

_PROGRAM = Path(__file__).with_name("program.py")
_FEW, _MANY = 2, 8  # layers
_NO_COLLECTIVES = "".join(
    f"int nccl{name}() {{ return 0; }}\n" for name in ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce")
)


class Counted(NamedTuple):
    """A layer's launches and calls of Python functions in a micro-batch."""

    launches: float
    calls: float


def main() -> None:
    """Print the table and the two figures."""
    counts, times = [], []
    with tempfile.TemporaryDirectory() as folder:
        real, library = building.ready(print), Path(folder) / "none.so"
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=_NO_COLLECTIVES, text=True, check=True)
        for framework in FRAMEWORKS:
            few, many = (_counted(framework, layers, Path(folder)) for layers in (_FEW, _MANY))
            counts.append(Counted(*((more - less) / (_MANY - _FEW) for less, more in zip(few, many, strict=True))))
            fast, slow = (_timed(real, library, framework, layers) for layers in (_FEW, _MANY))
            times.append((slow - fast) / (_MANY - _FEW))
            launches, calls = counts[-1]
            print(f"{framework:20} {launches:7.0f} launches {calls:9,.0f} calls {times[-1]:9,.0f} us")
    measured = np.array(times)
    launch, call = np.linalg.lstsq(np.array(counts) / measured[:, None], np.ones(len(times)), rcond=None)[0]
    errors = np.array(counts) @ (launch, call) / measured - 1
    print(f"launch {launch:.1f} us, call {call * 1000:.0f} ns; errors {', '.join(f'{error:+.0%}' for error in errors)}")


def _counted(framework: str, layers: int, folder: Path) -> Counted:
    trace, priced = folder / "counted.trace", folder / "priced.toml"
    profile = (Path(hardware.__file__).parent / "profiles" / "a100-100gbps.toml").read_text(encoding="utf-8")
    priced.write_text(f"call_ns = 1\n{profile}", encoding="utf-8")  # without a price no call is counted
    command = [
        sys.executable,
        "-m",
        "streamrace",
        "device",
        "--dry",
        "--hardware",
        str(priced),
        "--trace",
        str(trace),
    ]
    subprocess.run([*command, str(_PROGRAM), framework, str(layers)], env=shell(), check=True, capture_output=True)
    launches, calls, marks = 0, 0, []
    for record in TraceReader(trace).read():
        if isinstance(record, HostStep):
            calls += record.calls
        elif isinstance(record, (Launch, Collective)):
            launches += 1
            if "frac" in record.kernel:
                marks.append((launches, calls))
    (launched, called), (launches, calls) = marks
    return Counted((launches - launched) / (STEPS * ACCUMULATED), (calls - called) / (STEPS * ACCUMULATED))


def _timed(real: building.RealBuild, library: Path, framework: str, layers: int) -> float:
    ran = running.run(
        real, _PROGRAM, framework, str(layers), ranks=1, LD_PRELOAD=str(library), TORCH_DEVICE_BACKEND_AUTOLOAD="0",
        STREAMRACE_REAL_BUILD_LOG="",
    )  # fmt: skip
    return float(next(line for line in ran.lines if line.startswith(SAYS)).removeprefix(SAYS))


if __name__ == "__main__":
    main()

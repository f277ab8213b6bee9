"""Measures the price of the host without a GPU: ``python -m benchmarks.host``, in some minutes.

``streamrace calibrate --host`` on torch's real CUDA build over fake CUDA libraries (``tests/real_build``), whose
kernels and collectives do nothing, so the processor's time is the host's. The driver's part of a launch is missing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.real_build import building, running

_NO_COLLECTIVES = "".join(
    f"int nccl{name}() {{ return 0; }}\n" for name in ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce")
)


def main() -> None:
    """Print the table and the two figures."""
    real = building.ready(print)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "none.so"
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=_NO_COLLECTIVES, text=True, check=True)
        environment = running.environment(
            real, LD_PRELOAD=str(library), TORCH_DEVICE_BACKEND_AUTOLOAD="0", STREAMRACE_REAL_BUILD_MEETING=folder
        )
        calibrate = ["-m", "streamrace", "calibrate", "--host", "--out", f"{folder}/host.toml"]
        sys.exit(subprocess.run([sys.executable, *calibrate], env=environment, check=False).returncode)


if __name__ == "__main__":
    main()

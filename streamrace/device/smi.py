"""Provides ``nvidia-smi`` to programs on the simulated GPU: it reports that GPU, and nothing of the machine.

Values that are not simulated (driver, clocks, temperature, use) are ``[N/A]``, as NVIDIA's own program prints them.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from streamrace.process import lifetime

_UNKNOWN = "[N/A]"


@contextmanager
def on_path(name: str, capability: str, mebibytes: int, count: int) -> Iterator[None]:
    """Let programs started in the ``with`` block find ``nvidia-smi``, for ``count`` GPUs of this name and memory.

    Raises RuntimeError if it cannot be written.
    """
    before = os.environ.get("PATH", os.defpath)
    with tempfile.TemporaryDirectory(prefix="streamrace-", ignore_cleanup_errors=True) as folder:
        words = lifetime.module(__name__, name, capability, str(mebibytes), str(count))
        script = Path(folder) / "nvidia-smi"
        try:
            script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
            script.chmod(0o755)
        except OSError as error:
            raise RuntimeError(f"cannot write the program's nvidia-smi, {script}: {error.strerror or error}") from error
        os.environ["PATH"] = os.pathsep.join([folder, before])
        try:
            yield
        finally:
            os.environ["PATH"] = before


def main(arguments: Sequence[str]) -> int:
    """Print the requested values; return the exit status."""
    name, capability, mebibytes, number, *words = arguments
    count = int(number)
    queries = [word.partition("=")[2] for word in words if word.startswith("--query-gpu=")]
    if queries:
        form = next((word.partition("=")[2] for word in words if word.startswith("--format=")), "csv").split(",")
        units = "" if "nounits" in form else " MiB"
        fields = [field.strip() for field in queries[0].split(",")]
        if "noheader" not in form:
            print(", ".join(f"{field} [MiB]" if field.startswith("memory.") else field for field in fields))
        for index in range(count):
            values = {"name": name, "gpu_name": name, "count": number, "gpu_count": number, "index": str(index),
                     "gpu_uuid": f"GPU-simulated-{index}", "uuid": f"GPU-simulated-{index}", "compute_cap": capability,
                     "memory.total": f"{mebibytes}{units}"}  # fmt: skip
            print(", ".join(values.get(field, _UNKNOWN) for field in fields))
    elif "-L" in words or "--list-gpus" in words:
        for index in range(count):
            print(f"GPU {index}: {name} (UUID: GPU-simulated-{index})")
    elif words:
        print(f"streamrace: nvidia-smi of a simulated GPU knows --query-gpu and -L, not {words[0]}", file=sys.stderr)
        return 1
    else:
        print(f"NVIDIA-SMI of streamrace's simulated GPU   Driver Version: {_UNKNOWN}   CUDA Version: {_UNKNOWN}")
        for index in range(count):
            print(f"  {index}  {name}   compute capability {capability}   memory {_UNKNOWN} / {mebibytes}MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

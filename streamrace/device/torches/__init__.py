"""Creates a CPU build of any version of torch from the published wheel, once, in the user's cache.

The package index has CUDA builds for Linux on x86-64. A CUDA build has a GPU of its own, which cannot be replaced, and
requires gigabytes of NVIDIA's libraries. But its CUDA part is in separate libraries (``libtorch_cuda.so``,
``libc10_cuda.so``): without them no CUDA kernel and no CUDA hook is registered, and the rest is a CPU build, torch's
Python and ``libtorch_cpu`` as released. So only the wheel is downloaded, and unpacked without these libraries; stubs
replace the parts of them that loading the rest requires (:mod:`.stubs`). If pip finds a CPU build, it is used as it is.

``make setup`` (``python -m streamrace.device.torches``), :mod:`streamrace.device.substitute` and ``--package torch==X``
share these builds. Needs pip, a compiler and binutils, but no Python packages, as set-up has none yet.

Rejected: the whole CUDA build next to the simulated GPU (both register kernels for one key), today's torch with the
Python files of another (its FSDP would run on a core that it was never released with).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from streamrace.checkout import cache
from streamrace.compiling import BuildError, once
from streamrace.device.torches import pip, wheels
from streamrace.process import lifetime

Tell = Callable[[str], None]


def place(version: str) -> Path:
    """Return the folder for the CPU build of torch ``version`` for this Python, existing or not."""
    name = f"{version.partition('+')[0]}-{sysconfig.get_config_var('SOABI') or sys.implementation.cache_tag}"
    return cache() / "torch" / name


def tree(
    version: str,
    tell: Tell,
    *,
    wanted: Sequence[str] = (),
    before: Callable[[Path], None] = lambda tree: None,
) -> Path:
    """Return the folder with the CPU build of torch ``version``, after creating it atomically if necessary.

    ``wanted``: requirements that pip downloads instead of that release. ``before`` is called with the folder
    before torch is imported from it. Raise :class:`streamrace.compiling.BuildError`.
    """
    target = place(version)
    try:
        return once(target, lambda: _make(version, target, tell, wanted, before))
    except OSError as error:
        raise BuildError(f"torch {version} cannot be put into {target}: {error.strerror or error}") from error


def _make(version: str, place: Path, tell: Tell, wanted: Sequence[str], before: Callable[[Path], None]) -> None:
    for leftover in place.parent.glob(f".{place.name}.*.part"):  # from a killed process
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}.", suffix=".part", dir=place.parent) as folder:
        built = Path(folder) / "made"
        wheel = pip.download(version, Path(folder) / "wheel", tell, wanted)
        begun = time.monotonic()
        wheels.unpack(wheel, built)
        wheel.unlink()
        before(built)
        _try(version, built)
        size = sum(file.stat().st_size for file in built.rglob("*") if not file.is_symlink())
        tell(f"torch {version}: its CPU build is in {place}, {size / 1e6:,.0f} MB, "
             f"made in {time.monotonic() - begun:.0f} s")  # fmt: skip
        built.rename(place)


# With the device: since 2.14 torch needs CUDA kernels while it is imported, and the device has them.
_TRIAL = """
import sys
from streamrace.device import library
library.load()
import torch.distributed.fsdp
assert torch.__file__.startswith(sys.argv[1]), torch.__file__
"""


def _try(version: str, built: Path) -> None:
    """Build the device with the new build and import it: a build that fails is not kept, and the first run is fast."""
    path = os.pathsep.join(filter(None, [str(built), *(entry or os.getcwd() for entry in sys.path)]))
    result = subprocess.run(
        lifetime.command([sys.executable, "-P", "-c", _TRIAL, str(built)]), capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    if result.returncode:
        errors = result.stderr.strip().splitlines() or [f"it ended with {result.returncode}"]
        why = next((line for line in errors if "error: " in line), errors[-1])  # of the compiler
        raise BuildError(f"torch {version} cannot be run on the simulated GPU: {why}")

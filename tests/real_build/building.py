"""Torch's real CUDA build over fake CUDA libraries: the wheel of the package index, unpacked, and what it links with.

``python -m tests.real_build.building`` makes all of it, in ``.real-build/`` of the checkout. It needs Python, pip, g++
and binutils, no GPU and no CUDA: the libraries that torch links with are built of ``csrc/``, and of stubs
(:mod:`streamrace.device.torches.stubs`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from streamrace.compiling import BuildError, find_compiler, run_compiler
from streamrace.device.torches import stubs
from streamrace.device.torches.stubs import Written

ROOT = Path(__file__).resolve().parents[2]
_HERE = Path(__file__).parent
_SOURCES = _HERE / "csrc"
_NUMBERS = ROOT / "streamrace" / "device" / "csrc" / "numbers.h"  # the simulated device's, so that both draw alike
_KEPT = ("PIP_CERT", "PIP_DEFAULT_TIMEOUT", "PIP_INDEX_URL", "PIP_PROXY")  # how the index is reached
_INFORMATION = "streamrace_real_build-1.dist-info"
_NOT_SUPPORTED = 801  # cudaErrorNotSupported, and the driver's error of that name
_INVALID_USAGE = 5  # ncclInvalidUsage


@dataclass(frozen=True)
class RealBuild:
    """An unpacked CUDA build of torch, and the folder of the fake libraries that it is run with."""

    place: Path

    @property
    def torch(self) -> Path:
        """Return the folder of the package torch."""
        return self.place / "torch"

    @property
    def libraries(self) -> Path:
        """Return the folder of the fake libraries."""
        return self.place / "fake"


def pinned() -> str:
    """Return the version of torch that the project's environment has."""
    found = re.search(r"^torch==(\S+)$", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise BuildError("requirements.txt pins no version of torch")
    return found[1]


def ready(tell: Callable[[str], None] = lambda _: None) -> RealBuild:
    """Return the build, after making what is missing of it. Raise :class:`streamrace.compiling.BuildError`."""
    folder = ROOT / ".real-build"
    folder.mkdir(exist_ok=True)
    real = RealBuild(folder / f"torch-{pinned()}-{sys.implementation.cache_tag}")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not real.place.exists():
            _unpack(real.place, tell)
        made, digest = real.libraries / "digest", _digest()
        if not made.exists() or made.read_text() != digest:
            tell("building the fake CUDA libraries (a minute)")
            shutil.rmtree(real.libraries, ignore_errors=True)
            real.libraries.mkdir()
            _build(real)
            made.write_text(digest)
    return real


def _unpack(place: Path, tell: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(dir=place.parent) as name:
        tell(f"downloading the CUDA build of torch {pinned()} (some 500 MB)")
        wheel = _download(Path(name))
        unpacked = Path(name) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            if "torch/lib/libtorch_cuda.so" not in archive.namelist():
                raise BuildError(f"{wheel.name} is no CUDA build: the package index must be PyPI, or a mirror of it")
            archive.extractall(unpacked)
        for program in (unpacked / "torch" / "bin").iterdir():
            program.chmod(0o755)
        unpacked.rename(place)


def _download(folder: Path) -> Path:
    """Download the wheel from the package index alone: a CPU build in a folder known to pip would be preferred."""
    environment = {name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith("PIP_")}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "TMPDIR": str(folder)}
    words = ["download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--no-cache-dir"]
    command = [sys.executable, "-m", "pip", *words, "--only-binary=:all:", "--dest", str(folder), f"torch=={pinned()}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("torch-*.whl"))
    if done.returncode or not wheels:
        why = (done.stderr.strip().splitlines() or ["pip gave no wheel"])[-1]
        raise BuildError(f"the CUDA build of torch {pinned()} cannot be downloaded from the package index: {why}")
    return wheels[0]


def _digest() -> str:
    """Return a hash of all files that decide what is built."""
    digest = hashlib.sha256()
    for file in [*sorted(_SOURCES.iterdir()), _NUMBERS, Path(stubs.__file__), _HERE / "start.py", Path(__file__)]:
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _build(real: RealBuild) -> None:
    """Build all CUDA libraries that the build links with, its values, and the entry point that loads them."""
    late = real.torch / "lib" / "libcaffe2_nvrtc.so"  # loaded when torch first calls the driver
    runtime = next(name for name in stubs.needed(real.torch / "lib" / "libc10_cuda.so") if name.startswith("libcudart"))
    driver = Written("libcuda.so.1", sources("driver"), answer=_NOT_SUPPORTED)
    stubs.libraries([late], real.libraries, [driver], answer=0)
    written = [
        Written(runtime, sources("device", "memory", "streams", "launches"), answer=_NOT_SUPPORTED),
        Written("libnccl.so.2", sources("nccl", "meeting"), prefix="nccl", answer=_INVALID_USAGE),
        Written("libcublasLt.so.13", sources("cublas"), prefix="cublasLt", answer=0),
        Written("libnvshmem_host.so.3", prefix="nvshmem"),
    ]
    files = [file for file in stubs.files_of(real.torch) if file != late]
    stubs.libraries(files, real.libraries, written, answer=0)
    _compile(real, "the fake NVML", sources("nvml"), "libnvidia-ml.so.1")  # no file is linked with it
    links = [f"-L{real.torch / 'lib'}", "-ltorch_cpu", "-lc10"]
    _compile(real, "the real build's values", sources("values"), "libstreamrace_values.so", *links)
    shutil.copy(_HERE / "start.py", real.place / "streamrace_real_build.py")
    information = real.place / _INFORMATION
    information.mkdir(exist_ok=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: streamrace-real-build\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[torch.backends]\nreal_build = streamrace_real_build:load\n")


def sources(*names: str) -> list[Path]:
    """Return the files of ``csrc/`` with these names."""
    return [_SOURCES / f"{name}.cpp" for name in names]


def _compile(real: RealBuild, name: str, files: list[Path], library: str, *more: str) -> None:
    compiler = find_compiler()
    if compiler is None:
        raise BuildError(f"building {name} needs a C++ compiler, and there is none: install g++")
    options = ["-std=c++20", "-DNDEBUG", "-O1", "-fPIC", "-shared", f"-I{_SOURCES}", f"-I{_NUMBERS.parent}"]
    options.append(f"-isystem{real.torch / 'include'}")
    run_compiler(name, compiler, options, files, [*more], real.libraries / library)


if __name__ == "__main__":
    try:
        ready(lambda text: print(f"setup: {text}", flush=True))
    except BuildError as problem:
        raise SystemExit(f"streamrace: {problem}") from None

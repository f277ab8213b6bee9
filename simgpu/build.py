"""Builds the part of the device that is written in C++ (``csrc/``), once, with the compiler that is there.

One unit of translation: torch's headers take longer than our own lines. What was built is kept under a name that
is a hash of all that it depends on, so nothing needs to be compared when it is found.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from simgpu.extras import outside

_SOURCES = Path(__file__).with_name("csrc")
# NDEBUG as torch itself is built: its headers lay objects out differently without it (at::RecordFunction).
_FLAGS = ("-std=c++20", "-DNDEBUG", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,defs,--allow-shlib-undefined")
# SIMGPU_SANITIZE names one, for tests of the C++ part. ASan's runtime has to be there first: LD_PRELOAD=libasan.so
_SANITIZERS = {
    "": ("-O2",),
    "address": ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address"),
    "undefined": ("-O1", "-g", "-fsanitize=undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=all"),
}
# CPython's functions come from the interpreter that loads the library.
_UNDEFINED = ("-Wl,--unresolved-symbols=ignore-in-object-files",)


STUBBED = "simgpu-stubs"
"""Beside torch's libraries: their CUDA part was left out (:mod:`simgpu.torches`)."""


class BuildError(Exception):
    """The library cannot be built here; the message says what to do."""


def _flags() -> tuple[str, ...]:
    wanted = os.environ.get("SIMGPU_SANITIZE", "")
    if wanted not in _SANITIZERS:
        names = " or ".join(name for name in _SANITIZERS if name)
        raise BuildError(f"SIMGPU_SANITIZE names a sanitizer of the C++ part, {names}, not '{wanted}'")
    return _FLAGS + _SANITIZERS[wanted]


def torch_folder() -> Path:
    """Where torch is installed, found without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError(outside() or "torch is not installed in this environment: install its CPU build")
    return Path(spec.origin).parent


def has_cuda(torch: Path) -> bool:
    """Is it a CUDA build?"""
    return (torch / "lib" / "libtorch_cuda.so").exists() and not (torch / "lib" / STUBBED).exists()


def library() -> Path:
    """The built library; builds it when it is not there (a quarter of a minute). Raises :class:`BuildError`."""
    torch = torch_folder()
    if has_cuda(torch):
        raise BuildError(
            "this environment has a CUDA build of torch, whose GPU cannot be replaced by a simulated one: "
            "use an environment with torch's CPU build"
        )
    compiler = find_compiler()
    place = _folder() / f"libsimgpu-{_digest(compiler)}.so"
    if place.exists():
        return place
    if compiler is None:
        raise BuildError("the simulated GPU is built once with a C++ compiler, and there is none: install g++")
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            compile_library(compiler, torch, place)
    return place


def sources() -> list[Path]:
    """All sources, in the order in which they are compiled."""
    return sorted(_SOURCES.glob("*.cpp"))


def find_compiler() -> str | None:
    """The C++ compiler that is there; ``CXX`` says which."""
    return shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++")


def compile_library(compiler: str, torch: Path, place: Path) -> None:
    """Compile the sources into the library ``place``. Raises :class:`BuildError`."""
    made = place.with_suffix(f".{os.getpid()}")
    includes = [f"-I{_SOURCES}", f"-isystem{torch / 'include'}"]
    libraries = [f"-L{torch / 'lib'}", "-ltorch_cpu", "-lc10"]
    command = [
        compiler,
        *_flags(),
        *_as_torch(torch),
        *_UNDEFINED,
        *includes,
        "-x",
        "c++",
        "-",
        *libraries,
        "-o",
        str(made),
    ]
    unit = "".join(f'#include "{source.name}"\n' for source in sources())
    done = subprocess.run(command, input=unit, capture_output=True, text=True, check=False)
    if done.returncode:
        made.unlink(missing_ok=True)
        raise BuildError(f"building the simulated GPU failed: {shlex.join(command)}\n{done.stderr[:4000]}")
    made.replace(place)


def _as_torch(torch: Path) -> list[str]:
    """How torch was built, where that changes what the names of the C++ library's strings are (before 2.7)."""
    told = torch / "share" / "cmake" / "Torch" / "TorchConfig.cmake"
    return re.findall(r"-D_GLIBCXX_USE_CXX11_ABI=\d", told.read_text())[:1] if told.exists() else []


def _digest(compiler: str | None) -> str:
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    digest.update(importlib.metadata.version("torch").encode())
    digest.update(" ".join(_flags() + _UNDEFINED).encode())
    if compiler is not None:
        real = Path(compiler).resolve()
        digest.update(f"{real} {real.stat().st_size} {real.stat().st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _folder() -> Path:
    """In the checkout where there is one, else the user's cache."""
    root = _SOURCES.parents[1]
    if (root / "pyproject.toml").exists() and os.access(root, os.W_OK):
        return root / "build" / "simgpu"
    return cache()


def cache() -> Path:
    """The user's, for what is made once. ``SIMGPU_CACHE`` says where."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(os.environ.get("SIMGPU_CACHE") or os.path.join(home, "simgpu"))


if __name__ == "__main__":
    try:
        print(f"simgpu: built {library().name}")
    except BuildError as problem:
        raise SystemExit(f"simgpu: {problem}") from None

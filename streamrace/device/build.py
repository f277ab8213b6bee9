"""Builds the C++ part of the device (``csrc/``), once per environment, with the installed compiler.

All sources are one translation unit (:mod:`streamrace.compiling`): torch's headers take longer to compile than ours.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from contextlib import suppress
from pathlib import Path

from streamrace.compiling import SCHEMA, BuildError, digest_of, find_compiler, flags, folder, once, run_compiler, used
from streamrace.device.extras import elsewhere, outside

_SOURCES = Path(__file__).with_name("csrc")
# CPython's functions come from the interpreter that loads the library.
_UNDEFINED = ("-Wl,--unresolved-symbols=ignore-in-object-files",)


STUBBED = "simgpu-stubs"
"""A folder next to torch's libraries that marks a build without its CUDA part (:mod:`streamrace.device.torches`)."""


def torch_folder() -> Path:
    """Return the folder in which torch is installed, without importing torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError(outside() or "torch is not installed in this environment: pip install 'streamrace[watch]'")
    return Path(spec.origin).parent


def has_cuda(torch: Path) -> bool:
    """Check whether the torch in this folder is a CUDA build."""
    return (torch / "lib" / "libtorch_cuda.so").exists() and not (torch / "lib" / STUBBED).exists()


def cuda_version() -> str:
    """Return the CUDA version of the CUDA build in this environment, with which its other libraries compare theirs.

    Without one: a version for which every supported release (since 2.6) was built.
    """
    for folder_ in sys.path:
        with suppress(OSError):
            written = Path(folder_, "torch", "version.py").read_text(encoding="utf-8", errors="replace")
            if version := re.search(r"^cuda\b.*= '(\d+\.\d+)'", written, re.MULTILINE):
                return version[1]
    return "12.6"


def library() -> Path:
    """Return the built library, after building it if necessary (about 15 s). Raise :class:`BuildError`."""
    if sentence := elsewhere():
        raise BuildError(sentence)
    torch = torch_folder()
    if has_cuda(torch):
        raise BuildError(
            "this environment has a CUDA build of torch, whose GPU cannot be replaced by a simulated one: "
            "use an environment with torch's CPU build, or import torch after the simulated GPU is there"
        )
    compiler = find_compiler()
    built = place(importlib.metadata.version("torch"))
    if built.exists():
        return used(built)
    if compiler is None:
        raise BuildError("the simulated GPU is built once with a C++ compiler, but none is installed: install g++")
    return once(built, lambda: compile_library(compiler, torch, built))


def place(version: str) -> Path:
    """Return the library's path for this version of torch, whether built or not. Raise :class:`BuildError`."""
    digest = digest_of(_SOURCES, find_compiler(), [version, *flags(), *_UNDEFINED])
    return folder("simgpu") / f"libsimgpu-{digest}.so"


def sources() -> list[Path]:
    """Return all sources, in the order of compilation."""
    return sorted(_SOURCES.glob("*.cpp"))


def compile_library(compiler: str, torch: Path, place: Path) -> None:
    """Compile the sources into the library ``place``. Raise :class:`BuildError`."""
    includes = [f"-I{_SOURCES}", f"-I{SCHEMA}", f"-isystem{torch / 'include'}"]
    libraries = [f"-L{torch / 'lib'}", "-ltorch_cpu", "-lc10"]
    options = [*flags(), *as_torch(torch), *_UNDEFINED, *includes]
    run_compiler("the simulated GPU", compiler, options, sources(), libraries, place)


def as_torch(torch: Path) -> list[str]:
    """Return the flag for the C++ string ABI with which torch was built: before 2.7 it changes symbol names."""
    config = torch / "share" / "cmake" / "Torch" / "TorchConfig.cmake"
    return re.findall(r"-D_GLIBCXX_USE_CXX11_ABI=\d", config.read_text())[:1] if config.exists() else []


if __name__ == "__main__":
    try:
        print(f"streamrace: built {library().name}")
    except BuildError as problem:
        raise SystemExit(f"streamrace: {problem}") from None

"""Other versions of torch: a CPU build is made of the published wheel, where that is a CUDA build.

The package index has CUDA builds for Linux. A CUDA build has a GPU of its own, which nothing can replace, and asks for
2 GB of NVIDIA's libraries. But its CUDA part lies in libraries of its own (``libtorch_cuda.so``, ``libc10_cuda.so``):
without them no CUDA kernel and no CUDA hook registers itself, and what is left is what a CPU build is, torch's Python
and ``libtorch_cpu`` as they were released. So the wheel is unpacked without them. What the rest wants of them to be
loaded is given by small libraries of the same names (stubs), made here with the C++ compiler. A function of theirs
that is called is a RuntimeError that names it; one of CUDA's own answers that there is no device.

Rejected: the whole CUDA build beside the simulated GPU (both register kernels for one key), today's torch with the
Python files of another (its FSDP would run on a core that it was never released with).
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from streamrace.device.build import STUBBED
from streamrace.device.compiling import BuildError, find_compiler
from streamrace.device.ranks import bound

_DOWNLOAD_S = 3600
# Beginnings of the names of libraries that are of CUDA: left out of the wheel, and given as stubs where asked for.
OF_CUDA = ("libcaffe2_nvrtc", "libcublas", "libcud", "libcuf", "libcupti", "libcurand", "libcusolver", "libcusparse",
           "libnccl", "libnv", "libtorch_cuda", "libtorch_nvshmem", "libc10_cuda")  # fmt: skip
_UNUSED = ("torch/bin/ptxas", "torch/bin/protoc", "torch/bin/nvdisasm", "torch/test/", "torch/bin/test")
# What torch asks without a need for CUDA, and the answer. The first is asked for while torch is imported.
_ANSWERS = {
    "_ZN4c10d15get_gil_checkerEv": "static void* none[8]; return none;",  # written to, and never used
    "_ZN3c104cuda12device_countEv": "return nullptr;",  # no devices
    "_ZN3c104cuda17hasPrimaryContextEa": "return nullptr;",
}
_HEAD = """\
#include <cxxabi.h>
#include <stdexcept>
#include <string>
extern "C" const char kNone[] = "there is no CUDA here";
extern "C" const char* const kClass[] __asm__("_ZTVN10__cxxabiv117__class_type_infoE");
[[noreturn]] static void refuse(const char* name) {
  int status = 0;
  const char* plain = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string lacks("streamrace: this torch was built for CUDA and is run without its CUDA part: there is no ");
  throw std::runtime_error(lacks + (plain ? plain : name));
}
"""


def make(version: str, place: Path, *, wheel: Path | None = None) -> int:
    """Put torch ``version`` into the folder ``place``, whole or not at all; gives its size in bytes.

    The wheel comes from the package index unless it is given. Raises :class:`streamrace.device.compiling.BuildError`.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}.", suffix=".part", dir=place.parent) as folder:
        made = Path(folder) / "made"
        unpack(wheel or _download(version, Path(folder) / "wheel"), made)
        stub(made / "torch")
        _as_cpu(made / "torch" / "version.py")
        _tried(version, made)
        size = sum(file.stat().st_size for file in made.rglob("*") if not file.is_symlink())
        made.rename(place)
    return size


def _tried(version: str, made: Path) -> None:
    """Import it, and build the device with it: what cannot be run is not installed, and the first run need not wait."""
    path = os.pathsep.join(filter(None, [str(made), *(entry for entry in sys.path if entry)]))
    whole = f"import torch.distributed.fsdp; assert torch.__file__.startswith({str(made)!r}), torch.__file__"
    for words in (("-c", whole), ("-m", "streamrace.device.build")):
        done = subprocess.run(
            bound.command([sys.executable, *words]), capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
            raise BuildError(f"torch {version} cannot be run on the simulated GPU: {last}")


def _download(version: str, folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-input", "--disable-pip-version-check", "--no-deps"]
    command = bound.command([*pip, "--no-cache-dir", "--only-binary=:all:", "-d", str(folder), f"torch=={version}"])
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False, env=clean)
    except subprocess.TimeoutExpired:
        raise BuildError(f"torch {version} cannot be had: its download took over {_DOWNLOAD_S} s") from None
    found = sorted(folder.glob("*.whl")) if folder.exists() else []
    if done.returncode or not found:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise BuildError(f"torch {version} cannot be had: {(errors or ['pip gave no wheel'])[-1]}")
    return found[0]


def unpack(wheel: Path, place: Path) -> None:
    """Unpack ``wheel`` without its CUDA part and without what only compiles or tests it."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                name = entry.filename
                if name.startswith(_UNUSED) or name.rpartition("/")[2].startswith(OF_CUDA):
                    continue
                path = Path(archive.extract(entry, place))
                if not entry.is_dir() and entry.external_attr >> 16 & 0o111:
                    path.chmod(0o755)
    except (zipfile.BadZipFile, OSError) as error:
        raise BuildError(f"{wheel.name} cannot be unpacked: {error}") from error


def _as_cpu(file: Path) -> None:
    """``torch.version`` says what a CPU build's says: programs and torch's own files ask it which build this is."""
    text = re.sub(r"^(cuda\b[^=]*= ).*$", r"\1None", file.read_text(), flags=re.MULTILINE)
    file.write_text(re.sub(r"^(__version__ = '[^'+]*)(\+[^']*)?'", r"\1+cpu'", text, flags=re.MULTILINE))


def stub(torch: Path) -> list[str]:
    """Make the libraries that ``torch``'s own ask for and that are of CUDA; gives their names.

    Raises :class:`streamrace.device.compiling.BuildError` where there is no compiler, or no binutils.
    """
    folder = torch / "lib"
    there = [*sorted(folder.glob("*.so*")), *sorted(torch.glob("*.so")), *sorted(torch.parent.glob("functorch/*.so"))]
    asked = {name for file in there for name in _needed(file)} - {file.name for file in there}
    wanted = {name for name in asked if name.startswith(OF_CUDA)}
    if not wanted:
        return []
    main = min(wanted, key=lambda name: (not name.startswith("libtorch_cuda"), name))
    symbols: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, version in _missing(there, system=asked - wanted):
        symbols[version if version in wanted else main].append((name, version))
    for library in sorted(wanted):
        _compile(folder, library, symbols[library])
    (folder / STUBBED).write_text("".join(f"{name}\n" for name in sorted(wanted)))
    return sorted(wanted)


def _missing(files: Sequence[Path], *, system: Iterable[str]) -> list[tuple[str, str]]:
    """Symbols and their versions that the files want, and that neither they nor the libraries of the system have."""
    defined = {name for file in files for name, _ in _symbols(file, "--defined-only")}
    wanted = {symbol for file in files for symbol in _symbols(file, "--undefined-only")}
    loaded = [ctypes.CDLL(None), *(ctypes.CDLL(name) for name in system)]  # the first has Python's own

    def there(name: str) -> bool:
        return name in defined or any(hasattr(library, name) for library in loaded)

    return sorted(
        (name, version) for name, version in wanted if (version.startswith(OF_CUDA) if version else not there(name))
    )


def _symbols(file: Path, which: str) -> Iterable[tuple[str, str]]:
    for line in _told("nm", "-D", which, "--with-symbol-versions", str(file)).splitlines():
        kind, name = line.split()[-2:]
        if kind not in ("w", "v") or which == "--defined-only":  # a weak one may be absent
            name, _, version = name.partition("@")
            yield name, version.lstrip("@")


def _needed(file: Path) -> list[str]:
    return re.findall(r"NEEDED\s+(\S+)", _told("objdump", "-p", str(file)))


def _told(tool: str, *arguments: str) -> str:
    if shutil.which(tool) is None:
        raise BuildError(
            f"a CPU build is made of torch's wheel with binutils, and there is no {tool}: install binutils"
        )
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{tool} cannot read {arguments[-1]}: {done.stderr.strip()}")
    return done.stdout


def _compile(folder: Path, library: str, symbols: Sequence[tuple[str, str]]) -> None:
    compiler = find_compiler()
    if compiler is None:
        raise BuildError("a CPU build is made of torch's wheel with a C++ compiler, and there is none: install g++")
    with tempfile.TemporaryDirectory() as place:
        versions: dict[str, list[str]] = defaultdict(list)
        for name, version in symbols:
            versions[version].append(name)
        script = Path(place) / "versions"
        script.write_text("".join(f"{node} {{ {'; '.join(names)}; }};\n" for node, names in versions.items() if node))
        numbered = any(versions) and [f"-Wl,--version-script={script}"]
        code = _HEAD + "".join(_definition(number, name) for number, (name, _) in enumerate(symbols))
        command = [compiler, "-x", "c++", "-", "-O1", "-fPIC", "-shared", f"-Wl,-soname,{library}", *(numbered or [])]
        done = subprocess.run(
            [*command, "-o", str(folder / library)], input=code, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise BuildError(f"the stub of {library} cannot be compiled: {done.stderr[:2000]}")


def _definition(number: int, name: str) -> str:
    """What stands for a symbol. The header says what a stub answers."""
    label = f'__asm__("{name}")'
    if name.startswith("_ZTI"):  # pybind11 registers a class by its type's name
        return (
            f'extern "C" const void* const t{number}[] {label};\n'
            f'extern "C" const void* const t{number}[] = {{kClass + 2, "{name[4:]}"}};\n'
        )
    if name.startswith(("_ZTV", "_ZTT")) or re.fullmatch(r"_ZN(\d+\w+)+E", name):  # a table, a variable
        return f'extern "C" void* d{number}[64] {label};\nextern "C" void* d{number}[64] = {{}};\n'
    if name in _ANSWERS:
        return f'extern "C" void* f{number}() {label};\nextern "C" void* f{number}() {{ {_ANSWERS[name]} }}\n'
    if name.startswith("_Z"):
        return f'extern "C" void f{number}() {label};\nextern "C" void f{number}() {{ refuse("{name}"); }}\n'
    answer, value = ("const char*", "kNone") if name.endswith("String") else ("int", "100")  # cudaErrorNoDevice
    return f'extern "C" {answer} f{number}() {label};\nextern "C" {answer} f{number}() {{ return {value}; }}\n'

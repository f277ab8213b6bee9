"""Builds small libraries in place of torch's CUDA part, with the symbols that loading torch requires.

A call of a stub raises a RuntimeError that names the function; CUDA's own functions report that there is no device.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from streamrace.compiling import BuildError, find_compiler
from streamrace.device.build import STUBBED

# Name prefixes of CUDA's libraries: left out of the wheel, and replaced by stubs where they are required. Not
# libnvpl: NVIDIA's libraries for the CPU, in the wheels for aarch64.
OF_CUDA = ("libcaffe2_nvrtc", "libcublas", "libcud", "libcuf", "libcupti", "libcurand", "libcusolver", "libcusparse",
           "libnccl", "libnvJit", "libnvTools", "libnvfatbin", "libnvperf", "libnvrtc", "libnvshmem",
           "libtorch_cuda", "libtorch_nvshmem", "libc10_cuda")  # fmt: skip
_OF_CUDAS_CODE = re.compile("cu(da|dnn|blas|sparse|fft|solver|rand)|nccl|nvrtc|nvtx", re.IGNORECASE)
NO_DEVICE = 100  # cudaErrorNoDevice
# Functions that torch calls without a need for CUDA, and the stub's body. The first two are called during the import.
_ANSWERS = {
    "_ZN4c10d15get_gil_checkerEv": "static void* none[8]; return none;",  # written to, and never used
    # ProcessGroupNCCL::Options(bool), of which pybind11 keeps one as a default argument: since 2.13
    "_ZN4c10d16ProcessGroupNCCL7OptionsC1Eb": "return empty(self);",
    "_ZN3c104cuda12device_countEv": "return nullptr;",  # no devices
    "_ZN3c104cuda17hasPrimaryContextEa": "return nullptr;",
}
_HEAD = """\
#include <cxxabi.h>
#include <malloc.h>
#include <cstring>
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
static void leave() {}
static const void* const kOptions[] = {kClass + 2, "N4c10d16ProcessGroupNCCL7OptionsE"};
// Its type, for pybind11; then both destructors and release_resources(), with nothing to do.
static const void* const kTable[] = {nullptr, kOptions, (void*)leave, (void*)leave, (void*)leave};
// An object made by `new`, in all versions: empty strings and vectors are zeros.
static void* empty(void* self) {
  std::memset(self, 0, malloc_usable_size(self));
  *static_cast<const void* const**>(self) = kTable + 2;
  return self;
}
"""

# torch._C of a CPU build: torch's Python asks it whether there is CUDA, and NCCL, and if so overrides CUDA's operators
# since 2.14. CPython's prototypes are repeated here: a machine that only runs Python may lack its headers.
_MODULE = """\
#include <initializer_list>
#include <string>
struct Object;
struct Method { const char* name; Object* (*function)(Object*, Object*); int flags; const char* doc; };
extern "C" {
extern Object _Py_FalseStruct;
Object* initModule();
Object* PyModule_GetDict(Object*);
Object* PyImport_GetModuleDict();
Object* PyImport_AddModule(const char*);
Object* PyCFunction_NewEx(Method*, Object*, Object*);
Object* PyObject_CallNoArgs(Object*);
Object* PyDict_GetItemString(Object*, const char*);
Object* PyDict_Keys(Object*);
long PyList_Size(Object*);
Object* PyList_GetItem(Object*, long);
const char* PyUnicode_AsUTF8(Object*);
int PyDict_DelItemString(Object*, const char*);
int PyDict_SetItemString(Object*, const char*, Object*);
void Py_IncRef(Object*);
}
static void leave_out(Object* names, const std::string& before, std::initializer_list<const char*> beginnings) {
  Object* keys = PyDict_Keys(names);
  for (long at = 0; at < PyList_Size(keys); ++at)
    for (const char* one : beginnings) {
      const char* key = PyUnicode_AsUTF8(PyList_GetItem(keys, at));
      if (key != nullptr && std::string(key).rfind(before + one, 0) == 0) PyDict_DelItemString(names, key);
    }
}
static Object* distributed;  // torch._C._c10d_init
static Object* without_nccl(Object*, Object*) {
  Object* made = PyObject_CallNoArgs(distributed);
  if (made != nullptr)
    leave_out(PyModule_GetDict(PyImport_AddModule("torch._C._distributed_c10d")), "", {"ProcessGroupNCCL"});
  return made;
}
static Method kInit = {"_c10d_init", without_nccl, 4, nullptr};
extern "C" __attribute__((visibility("default"))) Object* PyInit__C() {
  Object* made = initModule();
  if (made == nullptr) return made;
  Object* names = PyModule_GetDict(made);
  leave_out(names, "", {"_cud", "_Cuda", "_CUDA", "_MemPool", "_nccl_", "_nvtx"});
  leave_out(PyImport_GetModuleDict(), "torch._C.", {"_cud", "_cusparselt", "_nvtx"});
  for (const char* name : {"_has_cuda", "_has_cudnn", "_has_cusparselt"})
    PyDict_SetItemString(names, name, &_Py_FalseStruct);
  distributed = PyDict_GetItemString(names, "_c10d_init");
  if (distributed != nullptr) {
    Py_IncRef(distributed);
    PyDict_SetItemString(names, "_c10d_init", PyCFunction_NewEx(&kInit, nullptr, nullptr));
  }
  return made;
}
"""


@dataclass(frozen=True)
class Written:
    """A library of which a part is written by hand in ``sources``; stubs that return ``answer`` are the rest.

    ``prefix``: begins the names of its functions, if they have no symbol versions.
    """

    library: str
    sources: Sequence[Path] = ()
    prefix: str = ""
    answer: int = NO_DEVICE


def stub(torch: Path) -> list[str]:
    """Build the CUDA libraries that ``torch``'s own libraries are linked with; return their names.

    Its module ``torch._C`` becomes that of a CPU build. Raise :class:`streamrace.compiling.BuildError` if there is no
    compiler, or no binutils.
    """
    folder = torch / "lib"
    cuda = libraries(files_of(torch), folder)
    if not cuda:
        return []
    for module in torch.glob("_C.*.so"):
        module.unlink()
        _run("torch._C", _MODULE, [f"-L{folder}", "-ltorch_python", "-Wl,-rpath,$ORIGIN/lib", "-o", str(module)])
    (folder / STUBBED).write_text("".join(f"{name}\n" for name in cuda))
    return cuda


def files_of(torch: Path) -> list[Path]:
    """Return the compiled files of the unpacked package ``torch``, and of functorch beside it."""
    return [
        *sorted((torch / "lib").glob("*.so*")),
        *sorted(torch.glob("*.so")),
        *sorted(torch.parent.glob("functorch/*.so")),
    ]


def libraries(
    files: Sequence[Path], folder: Path, written: Sequence[Written] = (), answer: int = NO_DEVICE
) -> list[str]:
    """Build in ``folder`` the CUDA libraries that ``files`` are linked with and that are not among them.

    Return their names. ``written``: libraries of which a part is written by hand. ``answer``: what the C functions of
    all others return. Raise :class:`streamrace.compiling.BuildError`.
    """
    linked = {name for file in files for name in needed(file)} - {file.name for file in files}
    cuda = {name for name in linked if name.startswith(OF_CUDA)}
    if not cuda:
        return []
    main = min(cuda, key=lambda name: (not name.startswith("libtorch_cuda"), name))
    parts = {one.library: one for one in written}
    symbols: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, version in _missing(files, system=linked - cuda):
        own = next((one.library for one in written if one.prefix and name.startswith(one.prefix)), main)
        symbols[version if version in cuda else own].append((name, version))
    for library in sorted(cuda):
        _compile(folder, library, symbols[library], parts.get(library, Written(library, answer=answer)))
    return sorted(cuda)


def beside(file: Path, missing: Sequence[str], bundled: Sequence[Path], folder: Path) -> None:
    """Build the libraries ``missing`` for ``file``, a compiled part of another package, in ``folder``.

    ``bundled``: libraries that came with it. torch is imported. Raise :class:`streamrace.compiling.BuildError`.
    """
    folder.mkdir(parents=True)
    own = [path for path in bundled if path.name in needed(file)]
    system = [name for name in needed(file) if name not in missing and name not in {path.name for path in own}]
    main = min(missing, key=lambda name: (not name.startswith("libtorch_cuda"), name))
    symbols: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, version in _missing([file, *own], system=system):
        if version in missing or not (version or _of_another_torch(name)):
            symbols[version or main].append((name, version))
    for library in sorted(missing):
        _compile(folder, library, symbols[library], Written(library))


def _of_another_torch(name: str) -> bool:
    """Check whether a missing symbol is not CUDA's: the file is then for another release, and fails on a GPU, too."""
    return name.startswith("_Z") and not _OF_CUDAS_CODE.search(name)


def _missing(files: Sequence[Path], *, system: Iterable[str]) -> list[tuple[str, str]]:
    """Return symbols with versions that the files need and that neither they nor the system's libraries define."""
    defined = {name for file in files for name, _ in _symbols(file, "--defined-only")}
    needed = {symbol for file in files for symbol in _symbols(file, "--undefined-only")}
    loaded = [ctypes.CDLL(None), *(ctypes.CDLL(name) for name in system)]  # the first one has Python's symbols

    def exists(name: str) -> bool:
        return name in defined or any(hasattr(library, name) for library in loaded)

    return sorted((name, version) for name, version in needed if version.startswith(OF_CUDA) or not exists(name))


def _symbols(file: Path, option: str) -> Iterable[tuple[str, str]]:
    for line in _output_of("nm", "-D", option, "--with-symbol-versions", str(file)).splitlines():
        kind, name = line.split()[-2:]
        if kind not in ("w", "v") or option == "--defined-only":  # weak symbols may be missing
            name, _, version = name.partition("@")
            yield name, version.lstrip("@")


def needed(file: Path) -> list[str]:
    """Return the names of the libraries that the file is linked with."""
    return re.findall(r"NEEDED\s+(\S+)", _output_of("objdump", "-p", str(file)))


def _output_of(tool: str, *arguments: str) -> str:
    if shutil.which(tool) is None:
        raise BuildError(
            f"a CPU build is made of torch's wheel with binutils, and there is no {tool}: install binutils"
        )
    result = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
    if result.returncode:
        raise BuildError(f"{tool} cannot read {arguments[-1]}: {result.stderr.strip()}")
    return result.stdout


def _compile(folder: Path, library: str, symbols: Sequence[tuple[str, str]], written: Written) -> None:
    with tempfile.TemporaryDirectory() as place:
        versions: dict[str, list[str]] = defaultdict(list)
        for name, version in symbols:
            versions[version].append(name)
        script = Path(place) / "versions"
        script.write_text("".join(f"{node} {{ {'; '.join(names)}; }};\n" for node, names in versions.items() if node))
        numbered = any(versions) and [f"-Wl,--version-script={script}"]
        code = _HEAD + "".join(_definition(number, name, written.answer) for number, (name, _) in enumerate(symbols))
        options = [*map(str, written.sources), f"-Wl,-soname,{library}", *(numbered or [])]
        _run(library, code, [*options, "-o", str(folder / library)])


def _run(library: str, code: str, options: Sequence[str]) -> None:
    compiler = find_compiler()
    if compiler is None:
        raise BuildError("a CPU build is made of torch's wheel with a C++ compiler, but none is installed: install g++")
    command = [compiler, "-std=c++17", "-x", "c++", "-", "-x", "none", "-O1", "-fPIC", "-shared", *options]
    result = subprocess.run(command, input=code, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BuildError(f"the stub of {library} cannot be compiled: {result.stderr[:2000]}")


def _definition(number: int, name: str, code: int) -> str:
    """Return the code that defines a symbol. The module's docstring says how a stub answers; ``code``: of C functions.

    Functions are weak, so that those that are written by hand take their places.
    """
    label = f'__asm__("{name}")'
    if name.startswith("_ZTI"):  # pybind11 registers a class by its type's name
        return (
            f'extern "C" const void* const t{number}[] {label};\n'
            f'extern "C" const void* const t{number}[] = {{kClass + 2, "{name[4:]}"}};\n'
        )
    if name.startswith(("_ZTV", "_ZTT")) or re.fullmatch(r"_ZN(\d+\w+)+E", name):  # a table, a variable
        return f'extern "C" void* d{number}[64] {label};\nextern "C" void* d{number}[64] = {{}};\n'
    if name in _ANSWERS:
        head = f'extern "C" void* f{number}(void* self)'
        return f"{head} {label};\n{head} {{ {_ANSWERS[name]} }}\n"
    if name.startswith("_Z"):
        return f'extern "C" void f{number}() {label};\nextern "C" void f{number}() {{ refuse("{name}"); }}\n'
    answer, value = ("const char*", "kNone") if name.endswith("String") else ("int", str(code))
    head = f'extern "C" __attribute__((weak)) {answer} f{number}()'
    return f"{head} {label};\n{head} {{ return {value}; }}\n"

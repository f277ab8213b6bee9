"""A CPU build of torch, made of a published wheel: what is left out is given as stubs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from streamrace.device import build, compiling, torches

pytestmark = pytest.mark.host

_CUDA = """
#include <string>
namespace c10::cuda { int device_count() { return 8; } struct Pool { virtual ~Pool(); }; Pool::~Pool() {} }
namespace at::cuda { void sleep(long) {} long counter[4] = {1, 2, 3, 4}; }
"""
_RUNTIME = 'extern "C" int cudaGetDeviceCount(int*) { return 0; }'
_CORE = """
#include <stdexcept>
#include <cstring>
#include <typeinfo>
namespace c10::cuda { int device_count(); struct Pool { virtual ~Pool(); }; }
namespace at::cuda { void sleep(long); extern long counter[4]; }
extern "C" int cudaGetDeviceCount(int*);
extern "C" int devices() { return c10::cuda::device_count(); }
extern "C" int runtime() { int n; return cudaGetDeviceCount(&n); }
extern "C" long variable() { return at::cuda::counter[2]; }
extern "C" const char* type() { return typeid(c10::cuda::Pool).name(); }
extern "C" const char* slept() {
  static char told[200];
  try { at::cuda::sleep(1); } catch (const std::runtime_error& error) { std::strncpy(told, error.what(), 199); }
  return told;
}
"""
_ASK = """
import ctypes, sys
core = ctypes.CDLL(sys.argv[1])
core.type.restype = core.slept.restype = ctypes.c_char_p
print(core.devices(), core.runtime(), core.variable(), core.type().decode())
print(core.slept().decode())
"""


def _compiled(code: str, library: Path, *more: str) -> None:
    compiler = compiling.find_compiler()
    assert compiler is not None
    command = [compiler, "-x", "c++", "-", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", str(library), *more]
    subprocess.run(command, input=code, text=True, check=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel as torch's: a core that asks for libraries of CUDA, whose symbols have versions, and these."""
    place = tmp_path_factory.mktemp("wheel")
    lib = place / "torch" / "lib"
    lib.mkdir(parents=True)
    script = place / "versions"
    script.write_text("libcudart.so.12 { cudaGetDeviceCount; };\n")
    _compiled(_RUNTIME, lib / "libcudart.so.12", f"-Wl,--version-script={script}")
    _compiled(_CUDA, lib / "libtorch_cuda.so")
    (lib / "libcudart.so").symlink_to("libcudart.so.12")
    _compiled(_CORE, lib / "libtorch_cpu.so", f"-L{lib}", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN",
              "-l:libtorch_cuda.so", "-l:libcudart.so.12")  # fmt: skip
    (place / "torch" / "__init__.py").write_text("raise ImportError('no whole torch')\n")
    version = place / "torch" / "version.py"
    version.write_text("__version__ = '2.8.0+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n")
    made = place / "torch-2.8.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for file in sorted(path for path in place.rglob("torch/**/*") if path.is_file() and not path.is_symlink()):
            archive.write(file, file.relative_to(place))
        archive.writestr("torch/bin/ptxas", "")
    return made


def test_what_is_of_cuda_is_left_out_and_stubs_answer_for_it(wheel: Path, tmp_path: Path) -> None:
    torches.unpack(wheel, tmp_path)
    lib = tmp_path / "torch" / "lib"
    assert sorted(file.name for file in lib.iterdir()) == ["libtorch_cpu.so"]
    assert not (tmp_path / "torch" / "bin" / "ptxas").exists()
    assert torches.stub(tmp_path / "torch") == ["libcudart.so.12", "libtorch_cuda.so"]
    done = subprocess.run([sys.executable, "-c", _ASK, str(lib / "libtorch_cpu.so")], capture_output=True, text=True)
    numbers, sentence = done.stdout.splitlines()
    assert numbers == "0 100 0 N3c104cuda4PoolE"  # no devices, cudaErrorNoDevice, zeros, and a type by its name
    assert sentence == (
        "streamrace: this torch was built for CUDA and is run without its CUDA part: there is no at::cuda::sleep(long)"
    )


def test_a_torch_without_its_cuda_part_is_no_cuda_build(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "whole")
    assert build.has_cuda(tmp_path / "whole" / "torch")
    torches.unpack(wheel, tmp_path / "made")
    torches.stub(tmp_path / "made" / "torch")
    assert not build.has_cuda(tmp_path / "made" / "torch")


def test_what_cannot_be_run_is_not_installed(wheel: Path, tmp_path: Path) -> None:
    """The wheel here is no whole torch: nothing is left of it. Its version says what a CPU build's says."""
    place = tmp_path / "releases" / "torch-2.8.0"
    with pytest.raises(compiling.BuildError, match=r"torch 2\.8\.0 cannot be run .*: ImportError: no whole torch"):
        torches.make("2.8.0", place, wheel=wheel)
    assert list(place.parent.iterdir()) == []
    torches.unpack(wheel, tmp_path / "made")
    torches._as_cpu(tmp_path / "made" / "torch" / "version.py")
    text = (tmp_path / "made" / "torch" / "version.py").read_text()
    assert text == "__version__ = '2.8.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"


def test_a_wheel_that_is_none_is_told_in_a_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "torch-2.8.0-py3-none-any.whl"
    broken.write_bytes(b"PK")
    with pytest.raises(
        compiling.BuildError, match="torch-2.8.0-py3-none-any.whl cannot be unpacked: File is not a zip"
    ):
        torches.make("2.8.0", tmp_path / "place", wheel=broken)
    assert not (tmp_path / "place").exists()

"""A CPU build of torch, made of a published wheel: what is left out is given as stubs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from streamrace import compiling
from streamrace.device import build, torches
from streamrace.device.torches import pip, stubs, wheels

pytestmark = pytest.mark.host

_CUDA = """
#include <string>
namespace c10::cuda { int device_count() { return 8; } struct Pool { virtual ~Pool(); }; Pool::~Pool() {} }
namespace at::cuda { void sleep(long) {} long counter[4] = {1, 2, 3, 4}; }
namespace c10d { struct ProcessGroupNCCL { struct Options { Options(bool); virtual ~Options(); }; };
ProcessGroupNCCL::Options::Options(bool) {}
ProcessGroupNCCL::Options::~Options() {} }
"""
_RUNTIME = 'extern "C" int cudaGetDeviceCount(int*) { return 0; }'
_CORE = """
#include <stdexcept>
#include <cstring>
#include <string>
#include <typeinfo>
#include <vector>
namespace c10::cuda { int device_count(); struct Pool { virtual ~Pool(); }; }
namespace at::cuda { void sleep(long); extern long counter[4]; }
namespace c10d { struct ProcessGroupNCCL { struct Options {
  Options(bool); virtual ~Options(); std::string name; std::vector<int> ranks;
}; }; }
extern "C" int cudaGetDeviceCount(int*);
extern "C" const char* options() {  // as pybind11 keeps one: it asks for its type, copies it, and lets go of it
  auto* made = new c10d::ProcessGroupNCCL::Options(false);
  const bool empty = made->name.empty() && std::vector<int>(made->ranks).empty();
  const char* type = empty ? typeid(*made).name() : "";
  delete made;
  return type;
}
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
# What torch's own module is made by.
_PYTHON = """
#include <initializer_list>
extern "C" void* PyModule_New(const char*);
extern "C" int PyModule_AddIntConstant(void*, const char*, long);
extern "C" void* initModule() {
  void* made = PyModule_New("_C");
  for (const char* name : {"_has_cuda", "_cuda_init", "_CudaDeviceProperties", "_has_mkl"})
    PyModule_AddIntConstant(made, name, 1);
  return made;
}
"""
_ASK = """
import ctypes, sys
core = ctypes.CDLL(sys.argv[1])
core.type.restype = core.slept.restype = core.options.restype = ctypes.c_char_p
print(core.devices(), core.runtime(), core.variable(), core.type().decode())
print(core.slept().decode())
print(core.options().decode())
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
    _compiled(_PYTHON, lib / "libtorch_python.so")
    _compiled("", place / "torch" / "_C.any.so")
    (place / "torch" / "__init__.py").write_text("raise ImportError('no whole torch')\n")
    version = place / "torch" / "version.py"
    version.write_text("__version__ = '2.8.0+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n")
    made = place / "torch-2.8.0-py3-none-any.whl"
    names = sorted(path for path in place.rglob("torch/**/*") if path.is_file() and not path.is_symlink())
    info = "torch-2.8.0.dist-info"
    with zipfile.ZipFile(made, "w") as archive:
        for file in names:
            archive.write(file, file.relative_to(place))
        archive.writestr("torch/bin/ptxas", "")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n")
        asked = ("sympy>=1.13", "nvidia-cudnn==9; platform_system == 'Linux'", "triton~=3.8", "extra; extra == 'a'")
        head = ("Metadata-Version: 2.1", "Name: torch", "Version: 2.8.0", *(f"Requires-Dist: {one}" for one in asked))
        archive.writestr(f"{info}/METADATA", "\n".join([*head, "", "As it is.", ""]))
        listed = [*(str(file.relative_to(place)) for file in names), "torch/bin/ptxas"]
        archive.writestr(f"{info}/RECORD", "".join(f"{name},sha256=as-released,1\n" for name in listed))
    return made


@pytest.fixture
def folder(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip can have wheels of torch from; what is made of them lies in a cache of this test."""
    there = tmp_path / "index"
    there.mkdir()
    (there / wheel.name).symlink_to(wheel)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(there))
    monkeypatch.setenv("STREAMRACE_CACHE", str(tmp_path / "cache"))
    return there


def test_what_is_of_cuda_is_left_out_and_stubs_answer_for_it(wheel: Path, tmp_path: Path) -> None:
    wheels.unpack(wheel, tmp_path)
    lib = tmp_path / "torch" / "lib"
    made = ["libcudart.so.12", "libtorch_cpu.so", "libtorch_cuda.so", "libtorch_python.so", build.STUBBED]
    assert sorted(file.name for file in lib.iterdir()) == sorted(made)
    assert (lib / build.STUBBED).read_text().split() == ["libcudart.so.12", "libtorch_cuda.so"]
    assert not (tmp_path / "torch" / "bin" / "ptxas").exists()
    done = subprocess.run([sys.executable, "-c", _ASK, str(lib / "libtorch_cpu.so")], capture_output=True, text=True)
    numbers, sentence, options = done.stdout.splitlines()
    assert numbers == "0 100 0 N3c104cuda4PoolE"  # no devices, cudaErrorNoDevice, zeros, and a type by its name
    assert sentence == (
        "streamrace: this torch was built for CUDA and is run without its CUDA part: there is no at::cuda::sleep(long)"
    )
    assert options == "N4c10d16ProcessGroupNCCL7OptionsE"  # empty, of its type, and it can be let go


def test_torchs_module_says_what_a_cpu_builds_says(wheel: Path, tmp_path: Path) -> None:
    wheels.unpack(wheel, tmp_path)
    ask = (
        "import ctypes, sys; init = ctypes.PyDLL(sys.argv[1]).PyInit__C; init.restype = ctypes.py_object\n"
        "print({name: one for name, one in vars(init()).items() if one in (0, 1)})"
    )
    module = tmp_path / "torch" / "_C.any.so"
    done = subprocess.run([sys.executable, "-c", ask, str(module)], capture_output=True, text=True)
    assert done.stdout == "{'_has_cuda': False, '_has_mkl': 1, '_has_cudnn': False, '_has_cusparselt': False}\n", done


def test_a_torch_without_its_cuda_part_is_no_cuda_build(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "whole")
    assert build.has_cuda(tmp_path / "whole" / "torch")
    wheels.unpack(wheel, tmp_path / "made")
    assert not build.has_cuda(tmp_path / "made" / "torch")
    text = (tmp_path / "made" / "torch" / "version.py").read_text()
    assert text == "__version__ = '2.8.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"


def test_it_is_installed_as_the_distribution_of_a_cpu_build(wheel: Path, tmp_path: Path) -> None:
    wheels.unpack(wheel, tmp_path / "made")
    assert wheels.requirements(tmp_path / "made") == ["sympy>=1.13"]
    packed = wheels.pack(tmp_path / "made", tmp_path)
    assert packed.name == "torch-2.8.0+cpu-py3-none-any.whl"
    pip_ = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target"]
    subprocess.run([*pip_, str(tmp_path / "site"), str(packed)], check=True)
    (info,) = (tmp_path / "site").glob("*.dist-info")
    told = HeaderParser().parsestr((info / "METADATA").read_text())
    assert (info.name, told["Version"], told.get_payload()) == ("torch-2.8.0+cpu.dist-info", "2.8.0+cpu", "As it is.\n")
    rows = dict(line.split(",", 1) for line in (info / "RECORD").read_text().splitlines())
    assert rows["torch/lib/libtorch_cpu.so"] == "sha256=as-released,1"  # what is as it was released still says so
    assert "torch/bin/ptxas" not in rows and rows["torch/version.py"] != "sha256=as-released,1"
    assert all((tmp_path / "site" / name).exists() for name in rows)


def test_it_is_made_once_and_shared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(torches, "_try", lambda version, made: tried.append(version))
    told: list[str] = []
    there = torches.tree("2.8.0", told.append)
    assert there == torches.place("2.8.0+cu126") and (there / "torch" / "version.py").exists()
    assert "downloading its wheel, without NVIDIA's libraries" in told[0] and " MB in " in told[1]
    for one in folder.iterdir():
        one.unlink()
    assert torches.tree("2.8.0", told.append) == there  # another command, another clone: nothing is fetched
    assert (tried, len(told)) == (["2.8.0"], 3)
    assert sorted(one.name for one in there.parent.iterdir()) == sorted([there.name, "lock"])


def test_a_cpu_build_that_pip_can_have_is_taken_as_it_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torches, "_try", lambda version, made: None)
    assert not pip.has_cpu_build("2.8.0")
    with zipfile.ZipFile(folder / "torch-2.8.0+cpu-py3-none-any.whl", "w") as archive:
        archive.writestr("torch/bin/protoc", "")
        archive.writestr("torch-2.8.0+cpu.dist-info/METADATA", "Name: torch\nVersion: 2.8.0+cpu\n")
        archive.writestr("torch-2.8.0+cpu.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("torch-2.8.0+cpu.dist-info/RECORD", "")
    assert pip.has_cpu_build("2.8.0") and not pip.has_cpu_build("2.8")
    there = torches.tree("2.8.0", lambda sentence: None)
    assert (there / "torch" / "bin" / "protoc").exists() and not (there / "torch" / "lib").exists()


def test_what_cannot_be_run_is_not_kept(folder: Path) -> None:
    """The wheel here is no whole torch, and has none of its headers."""
    with pytest.raises(compiling.BuildError, match=r"torch 2\.8\.0 cannot be run on .*: .*fatal error: "):
        torches.tree("2.8.0", lambda sentence: None)
    assert [one.name for one in torches.place("2.8.0").parent.iterdir()] == ["lock"]


def test_a_torch_that_is_not_released_is_told_in_a_sentence(folder: Path) -> None:
    with pytest.raises(compiling.BuildError, match=r"torch 2\.99\.0\.dev7 cannot be had: .*nightly"):
        torches.tree("2.99.0.dev7", lambda sentence: None)
    assert not torches.place("2.99.0.dev7").exists()


def test_a_release_that_a_constraint_of_pip_excludes_is_told_in_a_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "constraints.txt").write_text("torch<2.8\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints.txt"))
    with pytest.raises(compiling.BuildError, match=r"torch 2\.8\.0 cannot be had: a constraint of pip's configuration"):
        torches.tree("2.8.0", lambda sentence: None)


def test_a_wheel_that_is_none_is_told_in_a_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "torch-2.8.0-py3-none-any.whl"
    broken.write_bytes(b"PK")
    with pytest.raises(compiling.BuildError, match=r"torch-2\.8\.0.* cannot be unpacked: File is not a zip"):
        wheels.unpack(broken, tmp_path / "place")


def test_without_a_compiler_it_says_what_to_install(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stubs, "find_compiler", lambda: None)
    with pytest.raises(compiling.BuildError, match=r"with a C\+\+ compiler, but none is installed: install g\+\+"):
        wheels.unpack(wheel, tmp_path)


def test_a_version_that_was_not_tried_is_said_to_be() -> None:
    from streamrace.device.torches.releases import not_tried

    assert [not_tried(one) for one in ("2.8.0", "2.13.0+cpu", "2.15.1")] == [""] * 3
    assert not_tried("2.99.0").startswith("torch 2.99.0 was not tried on the simulated GPU (2.5 to 2.15 were)")
    assert "2.15.0.dev20261101+cu130 was not tried" in not_tried("2.15.0.dev20261101+cu130")

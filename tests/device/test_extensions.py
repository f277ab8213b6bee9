"""Compiled parts of other libraries that were built for CUDA: they are loaded, and their CPU's kernels are taken."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch
from judged import story

from streamrace.device import extensions
from streamrace.device.packages.requirements import built_for

WANTED = "namespace c10::cuda { signed char current_device(); } "


def built(folder: Path, mine: str) -> Path:
    """A library of this code, linked with CUDA's, which are not there any more."""
    cuda, runtime, file = folder / "libc10_cuda.so", folder / "libcudart.so.13", folder / "_C.so"
    build = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-x", "none", "-Wl,--no-as-needed"]
    theirs = WANTED + "signed char c10::cuda::current_device() { return 7; }"
    for target, code, with_ in (
        (cuda, theirs, []),
        (runtime, 'extern "C" int cudaGetLastError() { return 0; }', []),
        (file, WANTED + mine, [str(cuda), str(runtime)]),
    ):
        command = [*build, *with_, f"-Wl,-soname,{target.name}", "-o", str(target)]
        subprocess.run(command, input=code, text=True, check=True)
    cuda.unlink()
    runtime.unlink()
    return file


def test_a_library_that_is_linked_with_cuda_is_loaded_and_says_by_name_what_is_not_there(tmp_path: Path) -> None:
    mine = 'extern "C" int cudaGetLastError(); extern "C" int asked() { return cudaGetLastError(); }'
    mine += ' extern "C" int tried() { try { return c10::cuda::current_device(); } catch (...) { return -1; } }'
    file = built(tmp_path, mine)
    with pytest.raises(OSError, match="cannot open shared object|undefined symbol"):
        ctypes.CDLL(str(file))
    torch.ops.load_library(str(file))
    assert (ctypes.CDLL(str(file)).asked(), ctypes.CDLL(str(file)).tried()) == (100, -1)  # 100: cudaErrorNoDevice


def test_a_library_for_another_torch_is_not_loaded_as_on_a_gpu(tmp_path: Path) -> None:
    """Whoever loads it catches that and goes on without, as torchao does."""
    mine = 'namespace torch { void of_another_release(); } extern "C" int cudaGetLastError(); extern "C" int asked() '
    file = built(tmp_path, mine + "{ torch::of_another_release(); return cudaGetLastError(); }")
    with pytest.raises(OSError, match="Could not load|undefined symbol") as raised:
        torch.ops.load_library(str(file))
    assert "undefined symbol" in "".join(map(str, (raised.value, raised.value.__cause__)))


@pytest.mark.parametrize("key", ["CompositeImplicitAutograd", "CompositeExplicitAutograd"])
def test_torchvision_does_not_compare_the_cuda_version_that_it_was_built_for(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extensions, "_kept", [])
    theirs = torch.library.Library("torchvision", "DEF")
    theirs.define("_cuda_version() -> int")
    theirs.impl("_cuda_version", lambda: 99000, key)
    torch.ops.load_library(
        str(built(tmp_path, 'extern "C" int cudaGetLastError(); extern "C" int asked() { return 0; }'))
    )
    assert torch.ops.torchvision._cuda_version() == -1


def test_an_operators_own_kernel_for_cuda_gives_way_to_the_cpus_and_is_judged_as_any_other() -> None:
    def none_here(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("a kernel for a GPU that is not there")

    mine = torch.library.Library("mine", "DEF")
    mine.define("twice(Tensor x) -> Tensor")
    mine.impl("twice", lambda x: x * 2, "CPU")
    mine.impl("twice", none_here, "CUDA")
    torch.ops.simgpu.falls_back("mine::twice", "")
    side = torch.cuda.Stream()
    for waits, races in ((True, []), (False, [("aten::mm", "mine::twice")])):
        with story() as told:
            made = torch.ones(32, 32, device="cuda") @ torch.ones(32, 32, device="cuda")
            with torch.cuda.stream(side):
                if waits:
                    side.wait_stream(torch.cuda.default_stream())
                out = torch.ops.mine.twice(made)
            torch.cuda.current_stream().wait_stream(side)
            assert out[0, 0].item() == 64
        assert told.pairs == races


def test_torchvision_and_torchaudio_come_in_the_version_that_was_built_for_the_torch_that_runs() -> None:
    for torchs, vision, audio in (("2.13.0+cpu", "==0.28.0", ">=2.11"), ("2.7.1", "==0.22.1", "==2.7.1")):
        assert str(built_for("torchvision", torchs)) == f"torchvision{vision}"
        assert str(built_for("torchaudio", torchs)) == f"torchaudio{audio}"
    assert built_for("numpy", "2.13.0") is None and built_for("torchvision", "") is None

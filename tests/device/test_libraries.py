"""Libraries that ask for a GPU's tools: Triton, bitsandbytes, flash attention, nvidia-smi."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from streamrace.device import smi
from streamrace.device.triton import presence


def ones() -> torch.Tensor:
    return torch.ones(4, device="cuda")


def install(folder: Path, **files: str) -> None:
    """Have packages of these files in the import path; a double underscore stands for a folder's end."""
    for name, text in files.items():
        file = folder / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    sys.path.insert(0, str(folder))


@pytest.mark.parametrize("version", ["3.6.0", ""], ids=["too old", "absent"])
def test_triton_can_be_imported_and_is_found_by_nobody_and_its_kernels_are_refused_by_name(
    tmp_path: Path, version: str
) -> None:
    if version:
        install(tmp_path, triton__init="raise AssertionError('the one that is installed was imported')")
        (tmp_path / "triton" / "init.py").rename(tmp_path / "triton" / "__init__.py")
    presence._versions = lambda: iter([version] if version else [])  # whatever this environment has
    import triton  # type: ignore[import-not-found]
    import triton.language as tl  # type: ignore[import-not-found]
    from torch.utils._triton import has_triton
    from triton.language.extra.libdevice import rsqrt  # type: ignore[import-not-found]
    from triton.runtime.autotuner import OutOfResources  # type: ignore[import-not-found]

    assert importlib.util.find_spec("triton") is None and not has_triton()
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("triton")
    assert importlib.metadata.version("torch") == torch.__version__
    assert [triton.cdiv(n, 4) for n in (0, 4, 5)] == [0, 1, 2]
    assert [triton.next_power_of_2(n) for n in (1, 4, 5)] == [1, 4, 8]
    assert (
        tl.constexpr(tl.constexpr(3)).value == 3
        and {torch.float32: tl.float32}
        and issubclass(OutOfResources, Exception)
    )

    @triton.autotune(configs=[triton.Config({"BLOCK": 2}, num_warps=4)], key=["n"])
    @triton.heuristics({"EVEN": lambda given: given["n"] % 2 == 0})
    @triton.jit
    def add_kernel(x: Any, n: Any, BLOCK: tl.constexpr) -> None:  # noqa: N803
        pass

    @triton.jit(do_not_specialize=["n"])
    def scale_kernel(x: Any, n: Any) -> None:
        pass

    older = f"Triton {version} is installed, and they run here by the interpreter of Triton 3.7 or newer"
    what_to_do = older if version else "install Triton, whose interpreter runs them here"
    assert presence.advice() == f"{what_to_do} (pip install 'streamrace[triton]')"
    for kernel, name in ((add_kernel, "add_kernel"), (scale_kernel, "scale_kernel")):
        assert kernel.__name__ == name
        for launch in (lambda kernel=kernel: kernel[(1,)](ones(), 4), lambda kernel=kernel: kernel.warmup(grid=(1,))):
            with pytest.raises(
                RuntimeError, match=f"^streamrace: the Triton kernel '{name}' cannot be simulated: {what_to_do}"
            ):
                launch()
    with pytest.raises(RuntimeError, match=r"^streamrace: triton.language.extra.libdevice.rsqrt cannot be simulated: "):
        rsqrt(1)
    torch._dynamo.reset()  # torch's own compiler is imported as without Triton
    assert torch.equal(torch._dynamo.optimize("eager")(torch.neg)(ones()), -ones())


def test_bitsandbytes_is_refused_in_our_words_and_not_by_advice_to_install_it_again(tmp_path: Path) -> None:
    install(
        tmp_path,
        bitsandbytes__cextension="class BNBNativeLibrary:\n"
        "    def __getattr__(self, name):\n"
        "        if name == 'cpu': return print\n"
        "        def throw_on_call(*_): raise RuntimeError('Reinstall with GPU support')\n"
        "        return throw_on_call\n",
    )
    from bitsandbytes.cextension import BNBNativeLibrary  # type: ignore[import-not-found]

    assert BNBNativeLibrary().cpu is print
    with pytest.raises(
        RuntimeError, match="^streamrace: bitsandbytes' kernel 'cadam_8bit' cannot be simulated: use torch"
    ):
        BNBNativeLibrary().cadam_8bit(ones())


def test_flash_attention_is_refused_in_our_words_and_the_way_without_it_is_open() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    with pytest.raises(ImportError, match="^streamrace: flash_attention_2 .*use attn_implementation='sdpa'$"):
        LlamaForCausalLM(LlamaConfig(**small, vocab_size=32, attn_implementation="flash_attention_2"))
    model = LlamaForCausalLM(LlamaConfig(**small, vocab_size=32, attn_implementation="sdpa")).cuda()
    assert model(torch.arange(4, device="cuda")[None]).logits.shape == (1, 4, 32)


def test_nvidia_smi_tells_the_simulated_gpu_while_a_program_runs() -> None:
    def told(*arguments: str) -> str:
        return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=True).stdout

    before = os.environ["PATH"]
    with smi.on_path("Simulated GPU", "8.0", 81920, 2):
        assert told().count("Simulated GPU") == 2
        assert told("-L").splitlines()[1].startswith("GPU 1: Simulated GPU (UUID: ")
        query = told("--query-gpu=count,name,memory.total,driver_version", "--format=csv,noheader")
        assert query == "2, Simulated GPU, 81920 MiB, [N/A]\n" * 2
        assert told("--query-gpu=memory.total", "--format=csv,nounits").splitlines() == [
            "memory.total [MiB]",
            *["81920"] * 2,
        ]
        with pytest.raises(subprocess.CalledProcessError):
            told("topo", "-m")
    assert os.environ["PATH"] == before

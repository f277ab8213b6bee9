"""What cannot be simulated is refused when it is asked for: by its name, and with what to do."""

from __future__ import annotations

import importlib.util
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from judged import story

from docs import refusals


def device() -> torch.Tensor:
    return torch.ones(4, device="cuda")


def cudnn_alone() -> Any:
    image = torch.ones(1, 1, 3, 3, device="cuda")
    return torch.cudnn_convolution(image, image, (0, 0), (1, 1), (1, 1), 1, False, False, False)


def sent_to_another_process() -> Any:
    from multiprocessing.reduction import ForkingPickler

    import torch.multiprocessing  # noqa: F401

    return ForkingPickler.dumps(device())


def extension(name: str, **how: Any) -> Any:
    from torch.utils import cpp_extension

    return getattr(cpp_extension, name)("mine", ["mine.cpp", "mine.cu"], **how)


def named_extension(name: str, **how: Any) -> Any:
    from torch.utils import cpp_extension

    return getattr(cpp_extension, name)(name="theirs", **how)


REFUSED: dict[str, Callable[[], Any]] = {
    "what CUDA itself knows of a graph": lambda: torch.cuda.CUDAGraph(keep_graph=True).raw_cuda_graph(),
    "torch.accelerator.Graph": lambda: torch.accelerator.Graph(),
    "an event that is a node of a CUDA graph": lambda: torch.cuda.Event(external=True),
    "the CUDA extension 'mine' (torch.utils.cpp_extension.load)": lambda: extension("load"),
    "the CUDA extension 'mine' (torch.utils.cpp_extension.load_inline)": lambda: extension(
        "load_inline", cuda_sources="__global__ void f() {}"
    ),
    # as most libraries call it, megatron-core 0.15.2 while it is imported
    "the CUDA extension 'theirs' (torch.utils.cpp_extension.load)": lambda: named_extension("load", sources="a.cu"),
    "the CUDA extension 'theirs' (torch.utils.cpp_extension.load_inline)": lambda: named_extension(
        "load_inline", cpp_sources=["int f();"], functions=[], with_cuda=True
    ),
    "the CUDA extension 'mine' (CUDAExtension)": lambda: extension("CUDAExtension"),
    "a kernel compiled at run time": lambda: torch.cuda.jiterator._create_jit_fn(
        "template <typename T> T f(T x) { return x; }"
    )(device()),
    "a kernel compiled at run time (NVRTC": lambda: torch.cuda._compile_kernel("__global__ void f() {}", "f"),
    "a CUDA tensor in another process (CUDA IPC)": sent_to_another_process,
    "events between processes": lambda: torch.cuda.Event(interprocess=True),
    "the operator aten::cudnn_convolution cannot be simulated: it has no kernel": cudnn_alone,
    "the backend 'mpi'": lambda: torch.distributed.init_process_group("mpi"),
    "a memory pool of one's own": torch.cuda.MemPool,
    "another allocator": lambda: torch.cuda.memory.CUDAPluggableAllocator("mine.so", "allocate", "free"),
    "a snapshot of the allocator": torch.cuda.memory._snapshot,
    "__cuda_array_interface__": lambda: device().__cuda_array_interface__,
}


def test_each_is_one_sentence_with_its_name_and_what_to_do() -> None:
    for what, ask in REFUSED.items():
        with pytest.raises((RuntimeError, AttributeError)) as told:
            ask()
        said = str(told.value)
        assert said.startswith(f"streamrace: {what}"), said
        assert ": " in said.removeprefix("streamrace: "), said
        assert "\n" not in said


def test_each_is_on_the_page_of_what_is_refused() -> None:
    listed = [(one.subject, one.instead) for one in refusals.of_calls()] + [*refusals.of_functions().values()]
    patterns = [
        "".join(".*" if part == "…" else re.escape(part) for part in re.split("(…)", subject)) for subject, _ in listed
    ]
    for ask in REFUSED.values():
        with pytest.raises((RuntimeError, AttributeError)) as told:
            ask()
        assert any(re.match(rf"streamrace: {pattern},? cannot ", str(told.value)) for pattern in patterns), told.value


def test_every_file_that_refuses_is_on_the_page() -> None:
    named = {file for one in refusals.of_calls() for file in one.files}
    says = re.compile(r"^(?!\s*(?:#|//|def )).*(?:\brefusal\(|cannot be simulated)", re.MULTILINE)
    files = [file for end in ("py", "cpp", "h") for file in sorted(refusals.PRODUCT.rglob(f"*.{end}"))]
    refusing = {file.relative_to(refusals.PRODUCT.parent).as_posix() for file in files if says.search(file.read_text())}
    assert len(named) > 15
    assert not refusing - named


def test_nothing_that_torchs_python_calls_or_imports_of_cuda_is_simply_not_there() -> None:
    folder = Path(torch.cuda.__file__).parent.parent
    texts = [
        file.read_text()
        for room in ("cuda", "accelerator", "backends/cuda", "_dynamo", "_inductor", "export", "utils", "distributed")
        for file in (folder / room).rglob("*.py")
    ]
    ours = r"(_(?:cuda|nccl|gds|host|accelerator|cudnn_set)_\w+)"
    called = {name for text in texts for name in re.findall(rf"(?:torch\.)?_C\.{ours}\(", text)}
    listed = [names for text in texts for names in re.findall(r"from torch\._C import \(([^)]*)\)", text)]
    called |= {name for names in listed for name in re.findall(rf"\b{ours}", names)}
    assert len(called) > 90
    assert sorted(name for name in called if not hasattr(torch._C, name)) == []


def test_a_compiled_function_runs_eagerly_and_that_is_said_once() -> None:
    @torch.compile(mode="max-autotune")
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        module = torch.nn.Linear(4, 1)
        names = list(torch.compile(module).state_dict())
        again = torch.compile(module.cuda(), mode="reduce-overhead", fullgraph=True)
        out = again(double(device()))
        module.compile()
        assert torch.equal(module(double(device())), out)
    assert names == ["_orig_mod.weight", "_orig_mod.bias"]  # as programs know it
    assert [str(one.message) for one in told if "streamrace" in str(one.message)] == []  # it was said by the first


def test_torchs_tracers_run_and_what_they_would_compile_for_a_gpu_runs_as_it_is_written() -> None:
    def aside(x: torch.Tensor, side: torch.cuda.Stream, waits: bool) -> torch.Tensor:
        made = x @ x
        with torch.cuda.stream(side):
            if waits:
                side.wait_stream(torch.cuda.default_stream())
            made = made * 2
        torch.cuda.current_stream().wait_stream(side)
        return made + 1

    dynamo: Any = torch._dynamo
    dynamo.reset()
    module, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).cuda(), device()
    made = torch.export.export(module, (x,), strict=True).module()(x)
    assert torch.equal(made, module(x))
    assert torch.equal(dynamo.optimize("eager")(module)(x), made)
    assert dynamo.explain(lambda x: x.sin() + 1)(x).graph_count == 1
    big, side = torch.ones(64, 64, device="cuda"), torch.cuda.Stream()
    assert dynamo.optimize("eager")(aside)(big, side, True)[0, 0].item() == 129
    for waits, races in ((True, []), (False, [("aten::mm", "aten::mul")])):
        with story() as told, warnings.catch_warnings(record=True):
            dynamo.optimize("inductor")(aside)(big, side, waits)
        assert told.pairs == races


def test_what_runs_on_every_device_is_not_refused() -> None:
    assert torch.cuda.is_current_stream_capturing() is False
    assert "PyTorch CUDA memory summary" in torch.cuda.memory_summary()
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
    scripted = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Sigmoid()).cuda())
    assert all(scripted(device()).is_cuda for _ in range(4))
    assert torch.nn.SyncBatchNorm(4).cuda()(torch.ones(2, 4, device="cuda")).sum().item() == 0


def test_a_sleep_is_a_kernel_of_so_many_cycles() -> None:
    with story() as told:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(1_410_000)
        end.record()
        torch.cuda.synchronize()
    assert begin.elapsed_time(end) == pytest.approx(1.0, abs=0.02)
    assert told.launches[0].kernel == "torch.cuda._sleep"


def test_a_library_of_cuda_kernels_that_is_not_there_is_said_to_be_one() -> None:
    for name in ("flash_attn", "apex", "bitsandbytes"):
        with pytest.raises(
            ModuleNotFoundError, match=f"No module named '{name}'.*streamrace: .*CUDA kernels.*use torch"
        ):
            __import__(name)
        assert importlib.util.find_spec(name) is None
    with pytest.raises(ModuleNotFoundError) as told:
        __import__("no_such_library")
    assert str(told.value) == "No module named 'no_such_library'"


def test_a_compiled_library_that_asks_for_cuda_is_refused_by_name(tmp_path: Path) -> None:
    import subprocess

    # A shared library that wants libcudart, which is on no machine without CUDA.
    wanted = tmp_path / "libcudart.so.12"
    for target, rest in ((wanted, []), (tmp_path / "fused_kernels.so", [str(wanted)])):
        command = ["g++", "-shared", "-x", "c++", "/dev/null", "-x", "none", "-Wl,--no-as-needed", *rest]
        subprocess.run([*command, "-Wl,-soname," + target.name, "-o", str(target)], check=True)
    wanted.unlink()
    sys.path.insert(0, str(tmp_path))
    with pytest.raises(ImportError, match=r"streamrace: 'fused_kernels' is compiled for CUDA \(it asks for libcudart"):
        __import__("fused_kernels")

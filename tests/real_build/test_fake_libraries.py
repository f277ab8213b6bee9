"""The fake CUDA libraries: where they load, what they log and answer, and that their values are seen by nobody."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streamrace.compiling import find_compiler
from tests.real_build.building import ROOT, RealBuild, sources
from tests.real_build.running import PROGRAMS, run

pytestmark = pytest.mark.real_build


def test_they_refuse_to_load_where_there_is_a_driver(tmp_path: Path) -> None:
    library = tmp_path / "runtime.so"
    runtime = map(str, sources("device", "memory", "streams", "launches"))
    driver = '-DDRIVER_FILES="/proc/self/exe"'
    subprocess.run(
        [str(find_compiler()), "-std=c++17", "-fPIC", "-shared", driver, *runtime, "-o", str(library)], check=True
    )
    load = f"import ctypes; ctypes.CDLL({str(library)!r}); print('loaded')"
    done = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, check=False)
    assert done.returncode < 0
    assert done.stdout == ""
    assert done.stderr.startswith("streamrace: the fake CUDA libraries are for tests on machines without a GPU")
    assert len(done.stderr.splitlines()) == 1


def _run(real: RealBuild, folder: Path, code: str, **settings: str) -> tuple[list[str], list[str]]:
    program = folder / "program.py"
    program.write_text("import torch\n" + code)
    ran = run(real, program, **settings)
    return list(ran.lines), [line for line in ran.calls[0] if not line.startswith(("stream", "launch", "end"))]


def test_each_call_that_makes_order_is_a_line_of_the_log(real: RealBuild, tmp_path: Path) -> None:
    code = """
x = torch.empty(4, device="cuda")
side, done = torch.cuda.Stream(), torch.cuda.Event()
done.record()
side.wait_event(done)
with torch.cuda.stream(side):
    x.copy_(torch.ones(4).pin_memory(), non_blocking=True)
side.synchronize()
done.synchronize()
x.tolist()
"""
    _, calls = _run(real, tmp_path, code)
    assert calls == [
        "malloc 2097152 device 0", "record event 1 stream 0", "wait stream 1 event 1",
        "copy host to device 16 stream 1", "record event 2 stream 1", "synchronize stream 1", "synchronize event 1",
        "copy device to host 16 stream 0 pageable", "synchronize stream 0",
    ]  # fmt: skip


def test_queries_answer_as_often_as_wished_that_work_is_not_done(real: RealBuild, tmp_path: Path) -> None:
    code = """
done = torch.cuda.Event()
for _ in range(2):
    done.record()
    print([done.query() for _ in range(4)])
done.record()
done.synchronize()
print(done.query())
torch.ones(4, device="cuda")
print([torch.cuda.current_stream().query() for _ in range(4)])
"""
    lines, _ = _run(real, tmp_path, code, STREAMRACE_REAL_BUILD_UNREADY="3")
    assert lines == [
        "[False, False, False, True]",
        "[False, False, False, True]",
        "True",
        "[False, False, False, True]",
    ]


def test_the_memory_of_a_device_has_an_end(real: RealBuild, tmp_path: Path) -> None:
    code = """
x = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
try:
    torch.empty(60 << 20, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    print(str(error).partition(".")[0], torch.cuda.memory_stats()["num_ooms"])
print(torch.empty(30 << 20, dtype=torch.uint8, device="cuda").numel())
"""
    lines, _ = _run(real, tmp_path, code, STREAMRACE_REAL_BUILD_MEMORY=str(64 << 20))
    assert lines == ["CUDA out of memory 1", str(30 << 20)]


def test_a_kernel_that_sleeps_is_not_done_until_the_host_waits(real: RealBuild, tmp_path: Path) -> None:
    code = """
begin, end, late = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True), torch.cuda.Event()
side = torch.cuda.Stream()
begin.record()
torch.cuda._sleep(2_000_000)
end.record()
side.wait_event(end)
late.record(side)
print(begin.query(), end.query(), late.query(), side.query())
late.synchronize()
print(end.query(), side.query(), begin.elapsed_time(end))
"""
    lines, _ = _run(real, tmp_path, code)
    assert lines == ["True False False False", "True True 2.0"]


def test_expandable_segments_map_memory_of_the_device_and_give_it_back(real: RealBuild, tmp_path: Path) -> None:
    code = """
x = torch.ones(20 << 20, dtype=torch.uint8, device="cuda")
y = torch.ones(20 << 20, dtype=torch.uint8, device="cuda")
print(x[-1].item(), y[-1].item(), y.data_ptr() - x.data_ptr() == x.numel(), torch.cuda.memory_reserved() >> 20)
try:
    torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    print("OOM", torch.cuda.mem_get_info()[0] >> 20)
del x, y
torch.cuda.empty_cache()
print(torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0] >> 20)
"""
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "STREAMRACE_REAL_BUILD_MEMORY": str(64 << 20)}
    lines, _ = _run(real, tmp_path, code, **settings)
    assert lines == ["1 1 True 40", "OOM 24", "0 64"]


def test_an_operator_without_values_is_refused(real: RealBuild, tmp_path: Path) -> None:
    code = """
x = torch.ones(1, 1, 8, 8, device="cuda")
try:
    torch.nn.functional.scaled_dot_product_attention(x, x, x)
except NotImplementedError as error:
    print(str(error).partition(", ")[0])
"""
    lines, _ = _run(real, tmp_path, code)
    assert lines == ["the real build computes no values of aten::_efficient_attention_forward"]


def test_a_mode_and_the_callbacks_see_nothing_of_the_values(real: RealBuild) -> None:
    program = PROGRAMS / "watched.py"
    with_values, without = run(real, program), run(real, program, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert len(with_values.lines) > 50
    assert with_values.lines == without.lines
    assert with_values.calls == without.calls


def test_a_rank_that_fails_ends_the_others(real: RealBuild, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        (ROOT / "examples" / "fsdp2.py").read_text().replace("losses = []", "assert rank, 'rank 0 fails'")
    )
    with pytest.raises(AssertionError, match="rank 0 fails"):
        run(real, program, ranks=2)

"""``streamrace judge TRACE``: what of order a profiler's trace tells, what it lacks, and what is refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.inputs.obeyed import Said, obeyed
from tests.kineto.profiled import Profiled

COMPUTE, COMM = 7, 20
GATHER = {"Collective name": "_allgather_base", "In msg nelems": 64, "Process Group Name": "0"}
COPY = "Memcpy DtoD (Device -> Device)"
GEMM = "void cutlass::(anonymous namespace)::gemm_kernel<float, 4>(int, float*)"

Judging = Callable[..., Said]


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judging:
    """The command for a trace; its output on one line, without the frame."""
    monkeypatch.setenv("COLUMNS", "120")

    def judged(made: Profiled | bytes, *options: str, name: str = "trace.json", status: int = 4) -> Said:
        raw = made if isinstance(made, bytes) else made.text().encode()
        (tmp_path / name).write_bytes(raw)
        said = obeyed(["judge", name, *options], tmp_path)
        assert said.status == status, said
        return said._replace(out=" ".join(said.out.replace("│", " ").split()))

    return judged


def gathered(*, waits: bool, made: Profiled | None = None) -> Profiled:
    """A copy, and an all-gather of it on another stream: the bug of hpZ, with and without its wait."""
    made = made or Profiled()
    made.work(COPY, COMPUTE, us=30.0)
    made.around("aten::copy_", "cpu_op")
    made.around("train.py(3): step", "python_function")
    if waits:
        made.wait(COMM, made.record(), COMPUTE)
    made.work("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", COMM, **GATHER)
    made.around("train.py(5): step", "python_function")
    made.around("torch/distributed/c10d.py(80): wrapper", "python_function")
    made.host("Context Sync")  # of the profiler's end
    return made


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_collective_that_waits_for_nothing_is_named_with_the_copy_before_it(judge: Judging, name: str) -> None:
    raw = gathered(waits=False).text().encode()
    out = judge(gzip.compress(raw, mtime=0) if name.endswith(".gz") else raw, name=name).out
    assert "verdict: unknown" in out
    assert (
        "_allgather_base (stream 20, at train.py:5) does not wait for Memcpy DtoD (Device -> Device) (stream 7, "
        "aten::copy_ at train.py:3): once, while it ran, last at" in out
    )
    assert "stream 7 stream 20 0 1 1 1 Memcpy DtoD (Device -> Device), _allgather_base" in out


def test_with_its_wait_nothing_is_unordered_and_the_verdict_stays_unknown(judge: Judging) -> None:
    out = judge(gathered(waits=True)).out
    assert "verdict: unknown" in out
    assert "2 kernels and copies on 2 streams of NVIDIA H100, and 1 wait between streams." in out
    assert "All of it waits for what was launched before it on other streams." in out
    assert "nothing in the trace orders" not in out
    assert "stream 7 stream 20 1 1 0 0" in out


def test_work_of_the_same_names_is_told_once_and_collectives_first(judge: Judging) -> None:
    made = Profiled()
    for at in (100.0, 200.0, 300.0):
        made.work(GEMM, COMPUTE, us=50.0, at=at)
        made.work("scale_kernel", 21, us=5.0, at=at + 60)
    made.work(GEMM, COMPUTE, us=5.0, at=400.0)
    made.work("scale_kernel", 21, us=500.0, at=401.0)
    gathered(waits=False, made=made)
    out = judge(made).out
    gather, scale = out.index("_allgather_base (stream 20"), out.index("scale_kernel (stream 21) does not wait")
    assert gather < scale
    assert "scale_kernel (stream 21) does not wait for gemm_kernel (stream 7): 4 times, 1 of them while it ran" in out
    assert "while it ran, last at 391 us" in out


def test_without_sync_events_only_what_ran_at_the_same_time_is_told(judge: Judging) -> None:
    made = gathered(waits=False, made=Profiled(syncs=False))
    made.call("cudaStreamWaitEvent")
    made.work("scale_kernel", 21, at=500.0)
    out = judge(made).out
    assert "Work that ran at the same time, so is not ordered" in out
    assert "_allgather_base (stream 20, at train.py:5) ran while Memcpy DtoD (Device -> Device) (stream 7" in out
    assert "scale_kernel" not in out
    assert "Waits and synchronisations, though 1 cudaStreamWaitEvent call is there: profile with" in out
    assert "torch.profiler._ExperimentalConfig(enable_cuda_sync_events=True)" in out
    assert "between streams" not in out
    del made.events[1]  # the copy
    assert "No work of two streams ran at the same time; the trace does not tell" in judge(made).out


def test_waits_of_old_releases_which_name_no_event_are_not_taken_for_none(judge: Judging) -> None:
    made = gathered(waits=True)
    for event in made.events:
        event["args"].pop("wait_on_cuda_event_record_corr_id", None)
    out = judge(made).out
    assert "does not wait" not in out
    assert "Waits and synchronisations, though 1 cudaStreamWaitEvent call is there: profile with" in out


def test_a_synchronisation_orders_what_its_own_thread_launches_later(judge: Judging) -> None:
    for thread, ordered in ((1, True), (2, False)):
        made = Profiled()
        made.work(GEMM, COMPUTE)
        made.host("Stream Sync", stream=COMPUTE)
        made.work(COPY, COMM, thread=thread)
        made.call("cudaEventCreate", thread=3)  # a thread that launches nothing does not matter
        out = judge(made).out
        assert ("does not wait for gemm_kernel" in out) is not ordered
        assert ("The order between threads of the host" in out) is not ordered


def test_the_answer_of_a_query_is_not_taken_for_a_wait(judge: Judging) -> None:
    """Kineto writes an "Event Sync" for a query, whatever its answer."""
    made = Profiled()
    made.work(GEMM, COMPUTE)
    made.host("Event Sync", event=made.record(), of=COMPUTE, call="cudaEventQuery")
    made.work(COPY, COMM)
    out = judge(made).out
    assert "Memcpy DtoD (Device -> Device) (stream 20) does not wait for gemm_kernel" in out
    assert "The answers of 1 query of events and streams" in out


def lacking() -> Profiled:
    """A trace with all that can be missing."""
    made = Profiled()
    made.head["distributedInfo"] = {"rank": 3, "world_size": 8, "backend": "nccl"}
    made.wait(COMM, -1, -1)
    made.wait(COMM, made.calls + 5, COMPUTE)  # older releases of Kineto name the last record, after the wait too
    made.call("cudaStreamWaitEvent")
    made.work(GEMM, COMPUTE)
    made.events.append({**made.events[-1], "ts": 100.0})  # a CUDA graph's second kernel has the same launch
    made.work(COPY, COMM)
    del made.events[-2]  # its launch
    made.work(GEMM, 13, device=1)
    return made


def test_all_that_a_trace_lacks_is_said(judge: Judging) -> None:
    out = judge(lacking()).out
    for clause in (
        "Which memory a kernel reads and writes",
        "1 wait that the profiler left out",
        "The events of 2 waits: recorded before the trace began, or on another GPU",
        "The order within a launch: 2 kernels share one",
        "The launch of 1 kernel or copy, made before the trace began",
        "Order between GPUs: each is told by itself",
        "Order that CUDA makes by itself",
        "The order between ranks: this is the trace of one of 8",
        "The lines of the program: profile with with_stack=True",
    ):
        assert clause in out
    assert "GPU 0 stream 7" in out
    assert "GPU 1" not in out


def test_a_trace_of_the_cpu_alone(judge: Judging) -> None:
    made = Profiled()
    made.around("aten::add", "cpu_op")
    out = judge(made).out
    assert "The work of a GPU: profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]" in out
    assert "streamrace check --on-gpu train.py" in out


def test_more_pairs_than_fit_are_counted(judge: Judging) -> None:
    made = Profiled()
    for stream in range(7, 14):
        made.work(f"kernel_{stream}", stream)
    made.host("Context Sync")
    out = judge(made).out
    assert out.count("does not wait for kernel") == 12
    assert "And 9 more such pairs" in out


@pytest.mark.parametrize(
    ("options", "named"),
    [(["--strict"], "--strict"), (["--format", "sarif"], "--format"), (["--runs", "r"], "--runs"),
     (["--report"], "--report"), (["--name", "n"], "--name"), (["--output", "o"], "--output"),
     (["--overwrite"], "--overwrite")],
)  # fmt: skip
def test_options_of_a_run_are_refused(judge: Judging, options: list[str], named: str) -> None:
    err = judge(gathered(waits=True), *options, status=2).err
    assert f"Error: {named} goes with recordings: a profiler's trace has no findings" in err


def changed(category: str, **values: Any) -> bytes:
    made = gathered(waits=True)
    for event in made.events:
        if event["cat"] == category:
            event["args"].update({name: value for name, value in values.items() if name not in ("ts", "dur")})
            event.update({name: value for name, value in values.items() if name in ("ts", "dur")})
    return made.text().encode()


def of_two_processes() -> bytes:
    made = gathered(waits=True)
    made.call("cudaLaunchKernel")
    made.events[-1]["pid"] = 10
    return made.text().encode()


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"not json", "trace.json is no trace: it is cut off or is not JSON"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9], "it is gzipped, and not whole"),
        (b'{"a": 1}', "is no trace of torch's profiler: it has no traceEvents"),
        (b'{"traceEvents": [{"ph": "X", "name": "a"}]}', "it has neither operators nor kernels"),
        (b'{"schemaVersion": 2, "traceEvents": []}', "has schemaVersion 2, and only 1 is known"),
        (b'{"schemaVersion": "new", "traceEvents": []}', "has schemaVersion 'new', and only 1 is known"),
        (changed("kernel", correlation="7"), "has correlation '7', which is no whole number"),
        (changed("kernel", stream=None), "has stream None, which is no whole number"),
        (changed("kernel", device=1.5), "has device 1.5, which is no whole number"),
        (changed("kernel", correlation=10**30), "which is too large a number"),
        (changed("gpu_memcpy", ts="now"), "its event 'Memcpy DtoD (Device -> Device)' has ts 'now', which is no time"),
        (changed("gpu_memcpy", dur=-1), "has dur -1, which is no time"),
        (changed("gpu_memcpy", dur=float("nan")), "has dur nan, which is no time"),
        (changed("cuda_sync", wait_on_stream="all"), "has wait_on_stream 'all', which is no whole number"),
        (changed("cuda_runtime", correlation=[]), "has correlation [], which is no whole number"),
        (of_two_processes(), "has the calls of 2 processes: name the trace of one rank"),
    ],
)
def test_bad_input_is_one_sentence(judge: Judging, raw: bytes, says: str) -> None:
    said = judge(raw, status=2)
    assert says in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    said = obeyed(["judge", "none.json"], tmp_path)
    assert (said.status, "none.json cannot be read: No such file" in said.err) == (2, True)


def test_what_a_name_holds_reaches_no_terminal(judge: Judging) -> None:
    """``obeyed`` checks that."""
    made = gathered(waits=False)
    for event in made.events:
        event["name"] = f"\x1b[2J\u202e{event['name']}\n"
    made.head["deviceProperties"][0]["name"] = "\x1b[2J"
    assert "does not wait for" in judge(json.dumps({**made.head, "traceEvents": made.events}).encode()).out

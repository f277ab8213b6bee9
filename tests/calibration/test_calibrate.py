"""From a trace to a profile: a known machine comes back, and what cannot be read is told in one sentence."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from streamrace import checkout
from streamrace.device.hardware import Profile, load_profile
from streamrace.repro.commands.calibrate import calibrate as command
from streamrace.scenarios.base import ScenarioError
from streamrace.studies import calibration
from streamrace.studies.calibration import host
from streamrace.studies.calibration.host import LayerCost
from streamrace.trace.records import TraceError
from tests.calibration import traces

BASE = load_profile("a100-100gbps")
MINE = replace(
    BASE,
    kernel_us=3.1,
    launch_us=7.25,
    matmul_fraction=0.61,
    memory_fraction=0.77,
    attention_fraction=0.55,
    attention_backward_fraction=0.47,
    host_gbytes_per_s=18.5,
)
FIGURES = (
    "kernel_us", "launch_us", "matmul_fraction", "memory_fraction", "attention_fraction",
    "attention_backward_fraction", "host_gbytes_per_s",
)  # fmt: skip


def kept(folder: Path, trace: Any, name: str = "trace.json") -> Path:
    path = folder / name
    raw = json.dumps(trace).encode()
    path.write_bytes(gzip.compress(raw, mtime=0) if name.endswith(".gz") else raw)
    return path


def fitted(path: Path) -> Profile:
    return calibration.calibrate(calibration.read(path), BASE, "mine").profile


@pytest.mark.parametrize("linked", ["External id", "correlation"])
@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_the_machine_that_made_the_trace_comes_back(tmp_path: Path, name: str, linked: str) -> None:
    found = fitted(kept(tmp_path, traces.of(MINE, linked=linked), name))
    for figure in FIGURES:
        assert getattr(found, figure) == pytest.approx(getattr(MINE, figure), rel=0.02), figure


def test_so_it_does_where_kernels_vary_and_some_are_held_up(tmp_path: Path) -> None:
    found = fitted(kept(tmp_path, traces.of(MINE, noise=0.03, seed=3)))
    for figure in FIGURES:
        assert getattr(found, figure) == pytest.approx(getattr(MINE, figure), rel=0.02), figure


def test_the_command_writes_a_profile_that_hardware_takes_and_says_how_far_it_is_off(tmp_path: Path) -> None:
    path, out = kept(tmp_path, traces.of(MINE)), tmp_path / "mine.toml"
    told = CliRunner().invoke(command, [str(path), "--out", str(out)], catch_exceptions=False)
    assert told.exit_code == 0
    loaded = load_profile(str(out))
    assert (loaded.name, loaded.gpu, loaded.intra_node_gbits_per_s) == ("mine", "a100", BASE.intra_node_gbits_per_s)
    assert loaded.matmul_fraction == pytest.approx(0.61, rel=0.02)
    text = out.read_text(encoding="utf-8")
    assert text.startswith("# streamrace calibrate trace.json --base a100-100gbps: ")
    assert "NVIDIA A100-SXM4-80GB" in text
    assert "from 36 of the trace" in text
    for word in ("matmul", "memory", "attention", "backward", "host", "+0.0%"):
        assert word in told.output
    again = CliRunner().invoke(command, [str(path), "--out", str(out)])
    assert isinstance(again.exception, ScenarioError)
    assert "exists already" in str(again.exception)


def test_what_cannot_be_placed_is_told_by_its_operator(tmp_path: Path) -> None:
    trace = traces.of(MINE)
    for event in trace["traceEvents"]:
        if event["name"] == "aten::add":
            event["name"] = "aten::mystery"
    read = calibration.read(kept(tmp_path, trace))
    assert read.left == {"aten::mystery: not among the operators that are known": 60}
    found = calibration.calibrate(read, BASE, "mine")
    assert found.kept["memory_fraction"] == "no elementwise kernel or copy of at least 4 MiB"
    assert found.profile.memory_fraction is None


def without(trace: dict[str, Any], category: str) -> dict[str, Any]:
    return {**trace, "traceEvents": [one for one in trace["traceEvents"] if one["cat"] != category]}


def unshaped(trace: dict[str, Any]) -> dict[str, Any]:
    for event in trace["traceEvents"]:
        event["args"].pop("Input Dims", None)
    return trace


def foreign(trace: dict[str, Any]) -> dict[str, Any]:
    for event in trace["traceEvents"]:
        if event["cat"] == "cpu_op":
            event["name"] = "aten::mystery"
    return without(trace, "gpu_memcpy")


@pytest.mark.parametrize(
    ("trace", "says"),
    [
        (b"not json", "is no trace: it is cut off or is not JSON"),
        (b"\x1f\x8bbroken", "is no trace: it is gzipped, and not whole"),
        (b'{"a": 1}', "is no trace of torch's profiler: it has no traceEvents"),
        (b"17", "is no trace of torch's profiler: it has no traceEvents"),
        (b'{"schemaVersion": 2, "traceEvents": []}', "has schemaVersion 2, and only 1 is known"),
        (b"[]", "holds no kernels of a GPU"),
        (b'{"traceEvents": [1, null, {"ph": "X"}]}', "holds no kernels of a GPU"),
        (without(without(traces.of(MINE), "kernel"), "gpu_memcpy"), "is a trace of the CPU alone"),
        (without(without(without(traces.of(MINE), "kernel"), "gpu_memcpy"), "cpu_op"), "holds no kernels of a GPU"),
        (unshaped(traces.of(MINE)), "does not say the shapes that operators worked on"),
        (foreign(traces.of(MINE)), "none of the trace's kernels belongs to an operator whose work is known"),
    ],
)
def test_bad_input_is_told_in_one_sentence(tmp_path: Path, trace: Any, says: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(trace if isinstance(trace, bytes) else json.dumps(trace).encode())
    with pytest.raises((ScenarioError, TraceError)) as error:
        fitted(path)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_base_whose_kernels_are_not_known_is_refused(tmp_path: Path) -> None:
    path = kept(tmp_path, traces.of(MINE))
    with pytest.raises(ScenarioError, match="names no GPU whose kernels are known"):
        calibration.calibrate(calibration.read(path), replace(BASE, gpu=None), "mine")


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        calibration.read(tmp_path / "none.json")


def test_a_base_of_another_gpu_is_told(tmp_path: Path) -> None:
    trace = traces.of(MINE)
    trace["deviceProperties"][0]["name"] = "Tesla V100-SXM2-32GB"
    told = CliRunner().invoke(command, [str(kept(tmp_path, trace)), "--out", str(tmp_path / "own.toml")])
    assert told.exit_code == 0
    assert "The base is of another GPU (a100)" in told.output


def test_the_host_that_made_the_times_comes_back() -> None:
    counts = {"plain": (122, 87), "fsdp2": (143, 990), "zero3": (136, 8549)}
    layers = [LayerCost(name, *pair, 7.5 * pair[0] + 0.9 * pair[1]) for name, pair in counts.items()]
    found = host.fit(layers, {})
    assert (found.launch_us, found.call_ns) == pytest.approx((7.5, 900))
    assert [found.error(layer) for layer in layers] == pytest.approx([0, 0, 0], abs=1e-9)


def test_times_that_do_not_give_both_figures_are_refused() -> None:
    one, other = LayerCost("plain", 122, 87, 1500), LayerCost("fsdp2", 143, 990, 1000)
    with pytest.raises(ScenarioError, match=r"two figures need two programs, and 1 ran \(zero1: no deepspeed\)"):
        host.fit([one], {"zero1": "no deepspeed"})
    with pytest.raises(ScenarioError, match="measure again while no other job runs"):
        host.fit([one, other], {})


def test_a_layer_of_plain_torch_has_the_counts_that_the_page_tells() -> None:
    launches, calls = host.counted("plain")
    page = (checkout.IMPORTED_FROM / "docs" / "concepts" / "dry.md").read_text(encoding="utf-8")
    assert f"| plain torch | {launches:.0f} | {calls:.0f} |" in page


def test_without_a_gpu_the_host_is_not_measured(tmp_path: Path) -> None:
    out = tmp_path / "mine.toml"
    told = CliRunner().invoke(command, ["--host", "--out", str(out)])
    assert isinstance(told.exception, ScenarioError) and "torch sees no GPU here" in str(told.exception)
    for words in ([], ["trace.json", "--host"]):
        told = CliRunner().invoke(command, words)
        assert told.exit_code == 2 and "calibrate takes a TRACE or --host" in told.output
    assert not out.exists()

"""``pytest --stream-on-gpu``: marked tests on a GPU, for which the simulated one of the whole session stands."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.warm import ROOT, shell

if TYPE_CHECKING:
    from tests.fuzz.gpu_sessions import GpuSession

pytest_plugins = ["tests.fuzz.gpu_sessions"]

TESTS = """
    def work(ordered):
        x, side = torch.ones(8, device="cuda"), torch.cuda.Stream()
        x.mul_(2)  # first
        if ordered:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            return x.sum()  # second

    @pytest.mark.stream_race
    def test_racy():
        work(ordered=False)

    @pytest.mark.stream_race
    def test_ordered():
        work(ordered=True)

    @pytest.mark.stream_race
    def test_fails_itself():
        assert work(ordered=True) == 3

    @pytest.mark.stream_race
    def test_replays_a_graph():
        x, graph = torch.ones(8, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
        graph.replay()

    def test_unmarked():
        pass
"""


def test_a_race_fails_its_test_with_both_lines_and_what_is_not_seen_is_said(gpu: GpuSession) -> None:
    gpu.file(TESTS)
    told = gpu.run("--stream-device", "cuda", "--stream-on-gpu", passed=3, failed=2)
    assert "On this machine's GPU, 1 race:" in told
    assert gpu.line("# first") in told
    assert gpu.line("# second") in told
    assert "Missing: stream 1 never waits for stream 'default' after mul" in told, told
    assert "assert tensor(16., device='cuda:0') == 3" in told
    assert "test_replays_a_graph: not seen: a CUDA graph was replayed" in told


def test_without_a_gpu_each_marked_test_says_so(gpu: GpuSession) -> None:
    gpu.file(TESTS)
    words = [sys.executable, "-m", "pytest", "-p", "streamrace.fuzz.testing.plugin", "-p", "no:cacheprovider"]
    environment = {
        **shell(),
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(
        [*words, "--stream-on-gpu", "-rN"], capture_output=True, text=True, check=False, cwd=gpu.folder, env=environment
    )
    assert "4 failed, 1 passed" in done.stdout
    assert done.stdout.count("torch sees no GPU here, and a recording is of one") == 4

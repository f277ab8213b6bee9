"""What can be wrong with a session that asks for the simulated GPU, or should have, and the sentence that says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.fuzz.gpu_sessions import GpuSession
    from tests.fuzz.sessions import Session

pytest_plugins = ["pytester", "tests.fuzz.sessions", "tests.fuzz.gpu_sessions"]

ROOT = Path(__file__).resolve().parents[2]


def started(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A session as it is typed, with this plugin and no other."""
    fixed = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "fuzz.testing.plugin", "-p", "no:cacheprovider", *arguments]
    given = {**os.environ, **fixed, **environment}
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False)


def test_the_gpu_is_there_before_a_conftest_imports_torch(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nstream_race_device = cuda\n")
    (tmp_path / "conftest.py").write_text("import torch\nassert torch.cuda.is_available()\n")
    (tmp_path / "test_user.py").write_text(
        "import pytest, torch\n"
        "@pytest.mark.stream_race(examples=1)\n"
        "def test_ones():\n    return torch.ones(2) + torch.ones(2, device='cuda')\n"
    )
    done = started(tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def wrong(folder: Path, *arguments: str, **environment: str) -> str:
    done = started(folder, *arguments, **environment)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and done.stderr.startswith("ERROR: ")
    return done.stderr


def test_without_a_compiler_the_session_ends_with_a_sentence(tmp_path: Path) -> None:
    told = wrong(tmp_path, "--stream-device", "cuda", PATH=str(tmp_path), CXX="none")
    assert (
        "there can be no simulated GPU (--stream-device): the simulated GPU is built once with a C++ compiler" in told
    )
    assert "install g++" in told


def test_a_cuda_build_of_torch_is_told_in_a_sentence(tmp_path: Path) -> None:
    torch = tmp_path / "site" / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "lib" / "libtorch_cuda.so").touch()
    (torch / "__init__.py").touch()
    (tmp_path / "pytest.ini").write_text("[pytest]\nstream_race_device = cuda\n")
    told = wrong(tmp_path, PYTHONPATH=f"{tmp_path / 'site'}:{ROOT}")
    assert "there can be no simulated GPU (stream_race_device): this environment has a CUDA build of torch" in told


def test_who_asks_too_late_is_told_in_a_sentence(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--stream-device", "cuda")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "has to be there before torch is imported, and torch is imported already" in result.stderr.str()
    pytester.makeini("[pytest]\nstream_race_device = rocm\n")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "stream_race_device is 'cuda' or nothing, not 'rocm'" in result.stderr.str()


def test_without_the_option_a_test_that_says_cuda_is_told_of_it(session: Session) -> None:
    session.file(
        """
        @pytest.mark.stream_race
        @pytest.mark.parametrize("way", ["stream", "device", "event", "pinned"])
        def test_cuda(way):
            torch.ones(1)
            if way == "stream":
                torch.cuda.Stream()
            if way == "device":
                torch.ones(2, device="cuda")
            if way == "event":
                torch.cuda.Event()
            torch.ones(2).cuda()
        """
    )
    told = session.run(failed=4)
    option = (
        "let it run on a simulated one, by 'stream_race_device = cuda' in pytest's ini file, or pytest --stream-device"
    )
    assert told.count(option) >= 4 and "Torch not compiled with CUDA enabled" in told


def test_tokens_of_the_other_kind_are_told_apart(session: Session) -> None:
    session.file("@pytest.mark.stream_race\ndef test_ones():\n    return torch.ones(2)\n")
    result = session.pytester.runpytest_inprocess("-p", "no:cacheprovider", "--stream-timing", "t1,0/1/aten::mul/1+8us")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "this token is of a test on the simulated GPU: add --stream-device cuda" in result.stderr.str()


def test_a_token_that_does_not_fit_on_the_gpu_is_one_clear_sentence(gpu: GpuSession) -> None:
    gpu.file("@pytest.mark.stream_race\ndef test_ones():\n    return torch.ones(2)\n")
    of_accelerator = gpu.run("--stream-timing", "t1,test,name=test_ones,0/0.0/init//mul/1+8us")
    assert "this token is of a test on the simulated accelerator: leave out --stream-device" in of_accelerator
    assert "'what' does not begin with the version of a token" in gpu.run("--stream-timing", "what")
    told = gpu.run("--stream-timing", "t1,0/1/aten::mul/1+8us", failed=1)
    assert "the timing does not fit this test any more: there is no 1. aten::mul on stream 1 of rank 0" in told
    gpu.file("@pytest.mark.stream_race\n@pytest.mark.parametrize('a', [1, 2])\ndef test_ones(a):\n    pass\n")
    assert "this token is of one test, and 2 stream_race tests are chosen" in gpu.run("--stream-timing", "t1")


def test_what_a_session_has_done_before_its_forks_is_one_clear_sentence(gpu: GpuSession) -> None:
    gpu.file(
        """
        def step():
            weight = torch.ones(2, device="cuda", requires_grad=True)
            (weight * 2).sum().backward()
            return weight.grad

        @pytest.mark.stream_race(examples=1)
        def test_step():
            return step()

        def test_unmarked():
            step()

        @pytest.mark.stream_race(examples=1)
        def test_step_again():
            return step()

        @pytest.mark.stream_race(ranks=2, examples=1)
        def test_ranks():
            return torch.ones(1)
        """
    )
    told = gpu.run(passed=2, failed=2)
    assert "run this test in a session of its own (-m stream_race)" in told
    assert "each rank has a GPU of its own, but pytest's process has used its GPU before" in told
    gpu.run("-m", "stream_race", passed=3, deselected=1)

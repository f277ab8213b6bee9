"""A session that asks for the simulated GPU gets it before anything imports torch, or a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

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


@pytest.mark.wide
def test_workers_of_xdist_have_a_gpu_each(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(
        "import pytest, torch\n"
        "@pytest.mark.stream_race(examples=1)\n"
        "@pytest.mark.parametrize('wait', [True, False])\n"
        "def test_side(wait):\n"
        "    side, made = torch.cuda.Stream(), torch.zeros(2)\n"
        "    made.sum().item()\n"
        "    with torch.cuda.stream(side):\n        made.add_(1)\n"
        "    if wait:\n        torch.cuda.current_stream().wait_stream(side)\n"
        "    return made\n"
    )
    done = started(tmp_path, "--stream-device", "cuda", "-p", "xdist.plugin", "-n", "2")
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "Token: t1,0/1/aten::add/1+8us" in done.stdout
    assert "test_side[True]: Fragile: only the read at test_user.py:6 test_side puts" in done.stdout

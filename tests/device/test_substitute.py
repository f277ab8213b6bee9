"""An environment with a CUDA build of torch: a program runs with the CPU build of the same version, beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from streamrace.compiling import BuildError
from streamrace.device import substitute, torches
from streamrace.device.build import torch_folder

pytestmark = pytest.mark.host
VERSION = metadata.version("torch").partition("+")[0]


def wheel(folder: Path) -> Path:
    """One of torch's name, with next to nothing in it."""
    info = f"torch-{VERSION}.dist-info"
    path = folder / f"torch-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("torch/__init__.py", "")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STREAMRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """In front of all else: what a CUDA build is known by."""
    place = tmp_path / "cuda"
    (place / "torch" / "lib").mkdir(parents=True)
    (place / "torch" / "lib" / "libtorch_cuda.so").touch()
    (place / "torch" / "version.py").write_text("cuda: Optional[str] = '13.0'\n")
    (place / "torch" / "__init__.py").write_text("raise ImportError('the CUDA build was imported')")
    (place / f"torch-{VERSION}.dist-info").mkdir()
    (place / f"torch-{VERSION}.dist-info" / "METADATA").write_text(f"Name: torch\nVersion: {VERSION}+cu130\n")
    return place


@pytest.fixture
def made(cache: Path) -> Path:
    """The CPU build, as it lies in the cache when it was made."""
    there = torches.place(VERSION)
    there.mkdir(parents=True)
    real = torch_folder()
    for one in (real, *real.parent.glob("torch-*.dist-info")):
        (there / one.name).symlink_to(one)
    return there


def started(environment: Path, *words: str) -> subprocess.CompletedProcess[str]:
    shell = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    return subprocess.run(
        [sys.executable, *words],
        env={**shell, "PYTHONPATH": os.pathsep.join([str(environment), os.environ.get("PYTHONPATH", "")])},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_cpu_build_is_made_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torches, "_try", lambda version, made: None)
    monkeypatch.setenv("STREAMRACE_CPU_TORCH", str(wheel(tmp_path)))
    there = substitute.place()
    assert (there / "torch" / "__init__.py").exists() and there.is_relative_to(cache)
    assert "this environment has a CUDA build of torch: its CPU build" in capsys.readouterr().err
    monkeypatch.setenv("STREAMRACE_CPU_TORCH", "/no/such.whl")
    assert substitute.place() == there
    assert capsys.readouterr().err == ""


def test_where_pip_finds_none_a_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMRACE_CPU_TORCH", "/no/such.whl")
    with pytest.raises(BuildError, match=r"torch .* cannot be had: .*such.whl.*; set STREAMRACE_CPU_TORCH"):
        substitute.place()
    monkeypatch.setattr(metadata, "version", lambda name: "2.99.0.dev20261101+cu130")
    monkeypatch.setenv("STREAMRACE_CPU_TORCH", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(BuildError, match=r"2.99.0.dev20261101 for this Python \(is it a nightly"):
        substitute.place()


def test_a_script_is_checked_with_the_cpu_build_and_all_else_as_it_is(
    tmp_path: Path, environment: Path, made: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\nprint(torch.__file__, torch.ones(2, device='cuda').sum().item(), sys.argv[1:])\n"
        "print('for CUDA', torch.version.cuda)"  # torchvision compares it with its own
    )
    done = started(
        environment, "-m", "streamrace", "check", "--runs", str(tmp_path / "runs"), str(script), "--rate", "3"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{made}/torch/__init__.py 2.0 ['--rate', '3']" in done.stdout and "for CUDA 13.0" in done.stdout
    assert f"running with torch's CPU build in {made}" in done.stderr


def test_a_process_that_gives_itself_the_gpu_has_the_cpu_build(environment: Path, made: Path) -> None:
    program = (
        "from streamrace.device import launch; launch.start()\n"
        "import os, subprocess, sys, torch; print(torch.__file__, torch.ones(2, device='cuda').sum().item())\n"
        "subprocess.run([sys.executable, '-c', 'import torch; print(torch.__file__)'])"  # and what it starts
    )
    done = started(environment, "-c", program)
    assert done.stdout == f"{made}/torch/__init__.py 2.0\n" + f"{made}/torch/__init__.py\n", done.stderr


def test_marked_tests_run_with_the_cpu_build(tmp_path: Path, environment: Path, made: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        "import pytest\n@pytest.mark.stream_race\ndef test_sum():\n"
        "    import torch\n    assert torch.__file__.startswith("
        f"{str(made)!r}) and torch.ones(2, device='cuda').sum().item() == 2\n"
    )
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "test_one.py"))
    for asked in ((), ("--stream-device", "cuda")):
        done = started(environment, *words, *asked)
        assert "1 passed" in done.stdout, done.stdout + done.stderr

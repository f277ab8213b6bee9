"""An environment with a CUDA build of torch: a program runs with the CPU build of the same version, beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from streamrace.device import substitute
from streamrace.device.build import torch_folder
from streamrace.device.compiling import BuildError

pytestmark = pytest.mark.host
VERSION = metadata.version("torch").partition("+")[0]


def wheel(folder: Path, *, cuda: bool) -> Path:
    """One of torch's name, with next to nothing in it."""
    info = f"torch-{VERSION}.dist-info"
    path = folder / f"torch-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("torch/__init__.py", "")
        if cuda:
            file.writestr("torch/lib/libtorch_cuda.so", "")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STREAMRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cpu_build_is_installed_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STREAMRACE_CPU_TORCH", str(wheel(tmp_path, cuda=False)))
    there = substitute.place()
    assert (there / "torch" / "__init__.py").exists() and there.parent == cache
    assert "this environment has a CUDA build of torch: its CPU build" in capsys.readouterr().err
    monkeypatch.setenv("STREAMRACE_CPU_TORCH", "/no/such.whl")
    assert substitute.place() == there
    assert capsys.readouterr().err == ""


def test_another_cuda_build_is_not_taken_for_it(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMRACE_CPU_TORCH", str(wheel(tmp_path, cuda=True)))
    with pytest.raises(BuildError, match="is not a CPU build of torch: set STREAMRACE_CPU_TORCH to the path of"):
        substitute.place()
    assert [path.name for path in cache.iterdir()] == ["torch.lock"]


def test_where_pip_finds_none_a_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMRACE_CPU_TORCH", "/no/such.whl")
    with pytest.raises(BuildError, match=r"pip cannot install /no/such.whl \(.*\): set STREAMRACE_CPU_TORCH"):
        substitute.place()


def test_a_script_is_checked_with_the_cpu_build_and_all_else_as_it_is(tmp_path: Path, cache: Path) -> None:
    environment = tmp_path / "cuda"
    (environment / "torch" / "lib").mkdir(parents=True)
    (environment / "torch" / "lib" / "libtorch_cuda.so").touch()
    (environment / "torch" / "__init__.py").write_text("raise ImportError('the CUDA build was imported')")
    (environment / f"torch-{VERSION}.dist-info").mkdir()
    (environment / f"torch-{VERSION}.dist-info" / "METADATA").write_text(f"Name: torch\nVersion: {VERSION}\n")
    there = cache / f"torch-{VERSION}-cpu-python{sys.version_info.major}.{sys.version_info.minor}"
    there.mkdir(parents=True)
    real = torch_folder()
    for one in (real, *real.parent.glob("torch-*.dist-info")):  # as pip would have installed it
        (there / one.name).symlink_to(one)
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\nprint(torch.__file__, torch.ones(2, device='cuda').sum().item(), sys.argv[1:])"
    )
    shell = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    done = subprocess.run(
        [sys.executable, "-m", "streamrace", "check", "--runs", str(tmp_path / "runs"), str(script), "--rate", "3"],
        env={**shell, "PYTHONPATH": os.pathsep.join([str(environment), os.environ.get("PYTHONPATH", "")])},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{there}/torch/__init__.py 2.0 ['--rate', '3']" in done.stdout
    assert f"running with torch's CPU build in {there}" in done.stderr

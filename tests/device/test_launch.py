"""How a program gets the device: built once, loaded before torch, and at no cost for those that do not ask."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import with_simulated_gpu

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.host

TEN_LINES = """
import torch
side = torch.cuda.Stream()
a = torch.ones(4, 4, device="cuda")
b = a @ a
with torch.cuda.stream(side):
    {wait}
    c = b.sum()
torch.cuda.synchronize()
print(c.item())
"""

LEFT = """
import ctypes, sys, threading, torch
def go_on():
    while True:
        torch.ones(10, device="cuda").add_(1)
threading.Thread(target=go_on, daemon=True).start()
print(torch.ones(3, device="cuda").sum().item(), flush=True)
ctypes.pythonapi.Py_Exit(7)  # as any interpreter ends, and this one, which is a fork, would not
"""


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def on_device(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """``streamrace device`` where the device is loaded and torch is imported."""
    return with_simulated_gpu().run("-m", "streamrace.device", *arguments, folder=folder)


def test_a_script_that_says_cuda_runs_unmodified(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TEN_LINES.format(wait="side.wait_stream(torch.cuda.default_stream())"))
    done = python("-m", "streamrace.device", str(script))
    assert (done.returncode, done.stdout) == (0, "64.0\n"), done.stderr


def test_a_thread_that_is_left_does_not_abort_the_process_at_its_end(tmp_path: Path) -> None:
    """It ended with 134 and "terminate called without an active exception" where a daemon thread was within torch."""
    script = tmp_path / "train.py"
    script.write_text(LEFT)
    done = on_device(str(script))
    assert (done.returncode, done.stdout, done.stderr) == (7, "3.0\n", "")


def test_a_script_gets_its_arguments_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("word = 'beside'\n")
    script = tmp_path / "train.py"
    script.write_text("import sys, beside\nprint(__name__, sys.argv[1:], beside.word)\n")
    assert on_device(str(script), "--steps", "3").stdout == "__main__ ['--steps', '3'] beside\n"


def test_the_package_of_a_module_sees_the_modules_arguments_when_it_is_imported(tmp_path: Path) -> None:
    """As torchtitan's does, whose parser keeps them as a default value; and as with Python's own ``-m``."""
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").write_text("import sys\nSAID = [*sys.argv]\n")
    (tmp_path / "trainer" / "main.py").write_text("import sys, trainer\nprint(trainer.SAID, sys.argv[1:])\n")
    plain = subprocess.run(
        [sys.executable, "-m", "trainer.main", "--steps", "3"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert plain.stdout == "['-m', '--steps', '3'] ['--steps', '3']\n"
    assert on_device("-m", "trainer.main", "--steps", "3", folder=tmp_path).stdout == plain.stdout


def test_the_trace_of_a_script_tells_its_race(tmp_path: Path) -> None:
    from streamrace.detectors import RaceDetector
    from streamrace.trace.files import TraceReader

    script, trace = tmp_path / "train.py", tmp_path / "train.trace"
    script.write_text(TEN_LINES.format(wait="pass"))
    on_device("--trace", str(trace), str(script))
    detector = RaceDetector()
    detector.feed(0, TraceReader(trace).read())
    detector.finish()
    (race,) = detector.races
    assert [(side.kernel, side.stack[0].file, side.stack[0].line) for side in (race.first, race.second)] == [
        ("aten::mm", "train.py", 5),
        ("aten::sum", "train.py", 8),
    ]


def test_a_wrong_call_is_one_sentence() -> None:
    done = python("-m", "streamrace.device", "nowhere.py")
    assert done.returncode == 2
    assert done.stderr.startswith("streamrace: there is no script 'nowhere.py'\n")


def test_a_place_of_a_wait_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('it ran')")
    done = python("-m", "streamrace.device", "--without", "wait", str(tmp_path / "train.py"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("streamrace: 'wait' is no place of a wait: it is stream.wait_event@file.py:12")


def test_too_late_is_said() -> None:
    done = python("-c", "import torch, streamrace.device.launch as launch; launch.start()")
    assert "torch is imported already" in done.stderr.splitlines()[-1]


def test_without_a_compiler_one_sentence_says_what_to_do(tmp_path: Path) -> None:
    program = f"import streamrace.device.build as b; b.folder = lambda name: b.Path({str(tmp_path)!r}); b.library()"
    done = python("-c", program, PATH=str(tmp_path), CXX="")
    assert done.stderr.splitlines()[-1].endswith(
        "the simulated GPU is built once with a C++ compiler, but none is installed: install g++"
    )


def test_what_does_not_ask_for_the_device_pays_nothing() -> None:
    done = python("-c", "import streamrace.device, sys; print('torch' in sys.modules, 'ctypes' in sys.modules)")
    assert done.stdout == "False False\n"


def test_settings_of_the_allocator_are_told_as_not_simulated(tmp_path: Path) -> None:
    """Whoever reads memory figures must know that they are those of torch's default settings."""
    script = tmp_path / "train.py"
    script.write_text('import torch\ntorch.ones(3, device="cuda")\n')
    said = "the allocator's settings max_split_size_mb:128 are not simulated"
    assert said in python("-m", "streamrace.device", str(script), PYTORCH_ALLOC_CONF="max_split_size_mb:128").stderr
    script.write_text('import torch\ntorch._C._accelerator_setAllocatorSettings("max_split_size_mb:128")\n')
    assert said in on_device(str(script)).stderr

"""``streamrace check --record`` and ``streamrace replay FOLDER``: what a user types, and what comes of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from streamrace.device.launch import main
from streamrace.replay.recording import Recording
from tests.warm import shell, with_simulated_gpu

pytestmark = pytest.mark.host

SCRIPT = """
import torch
torch.manual_seed(0)
side = torch.cuda.Stream()
a = torch.randn(64, 64, device="cuda")
for _ in range(3):
    a = a @ a / 8
with torch.cuda.stream(side):
    b = a * 2
side.synchronize()
print(b.sum().item())
"""
SLOW = "t1,x20:stream:0"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "train.py"


def repro(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return with_simulated_gpu().run("-m", "streamrace", *words, folder=script.parent, environment=shell())


def check(script: Path, *options: str) -> None:
    done = repro(script, "check", "--witnesses", "0", "--name", "one", *options, "train.py")
    assert done.returncode == 1, done.stderr


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script that was checked and recorded, as ``runs/one`` beside it."""
    script = tmp_path_factory.mktemp("recorded") / "train.py"
    script.write_text(SCRIPT)
    check(script, "--record")
    return script


def test_a_checked_program_is_replayed_in_another_timing(recorded: Path) -> None:
    script = recorded
    told = repro(script, "replay", "runs/one")
    assert told.returncode == 0 and "the replay reproduces their bits" in told.stdout, told.stderr
    told = repro(script, "replay", "runs/one", "--timing", SLOW)
    assert "1 of 1 values that the host reads differ" in told.stdout
    assert "aten::_local_scalar_dense at train.py:11, rank 0" in told.stdout
    data = json.loads(repro(script, "replay", "runs/one", "--timing", SLOW, "--json", "--times", "2").stdout)
    assert (data["read_otherwise"], data["ranks"], data["departure"]["line"]) == (1, 1, 11)


def test_a_checked_program_that_was_not_recorded_is_refused_in_a_sentence(script: Path) -> None:
    check(script)
    told = repro(script, "replay", "runs/one")
    assert told.returncode == 2
    assert told.stderr == "Error: runs/one records times of work, not values: check the program with --record\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("runs/one", "--timing", "t1,0/0/aten::nothing/1+1us"), "has no 1. 'aten::nothing' on stream 0"),
        (("runs/one", "--timing", "rubbish"), "token"),
        (("runs/one", "--live"), "streamrace check --timing TOKEN SCRIPT"),
        (("t1,hpz", "--timing", "t1"), "--timing is for a FOLDER"),
        (("runs",), "there is no recording in runs"),
    ],
)
def test_a_mistake_is_one_sentence(recorded: Path, words: tuple[str, ...], sentence: str) -> None:
    told = repro(recorded, "replay", *words)
    assert told.returncode == 2 and sentence in told.stderr and "Traceback" not in told.stderr


def test_a_script_is_recorded_without_a_check(script: Path) -> None:
    done = with_simulated_gpu().run(
        "-m", "streamrace.device", "--trace", "trace", "--record", "train.py", folder=script.parent, environment=shell()
    )
    assert done.returncode == 0
    assert Recording.load(script.parent / "trace").world == 1


def test_a_recording_needs_a_place(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--record", str(script)]) == 2
    assert "--record needs a --trace" in capsys.readouterr().err

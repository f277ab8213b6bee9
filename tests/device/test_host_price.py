"""The host's own code takes time: a profile has a price for a call of one of the program's Python functions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streamrace.device import hardware
from streamrace.device.hardware import ProfileError, load_profile
from streamrace.trace.files import TraceReader
from streamrace.trace.records import HostStep, Launch, TraceRecord
from tests.warm import shell

CALL_NS, LAUNCH_NS = 700, 5000
PROGRAM = """
import torch

def leaf(): pass

def calls(times):
    for _ in range(times): leaf()

def grow(gradient):
    calls(40)
    return gradient * 2

calls(1000)  # the program's start
x = torch.ones(8, device="cuda", requires_grad=True)
calls(10)
y = x * 3
import colorsys  # what is imported is no part of the training
calls(20)
z = y + 1
y.register_hook(grow)
z.sum().backward()
"""


def machine(folder: Path, price: str = f"call_ns = {CALL_NS}") -> Path:
    text = (Path(hardware.__file__).parent / "profiles" / "a100-100gbps.toml").read_text(encoding="utf-8")
    file = folder / "mine.toml"
    file.write_text(f"{price}\n{text}", encoding="utf-8")
    return file


def records(folder: Path, price: str = f"call_ns = {CALL_NS}") -> list[TraceRecord]:
    program, trace = folder / "train.py", folder / "train.trace"
    program.write_text(PROGRAM, encoding="utf-8")
    options = ["--dry", "--hardware", machine(folder, price), "--trace", trace, program]
    subprocess.run([sys.executable, "-m", "streamrace", "device", *map(str, options)], env=shell(), check=True)
    return list(TraceReader(trace).read())


def calls_before(found: list[TraceRecord], kernel: str) -> int:
    """Return the calls between the first launch of ``kernel`` and the launch before it."""
    calls = 0
    for record in found:
        if isinstance(record, HostStep):
            calls += record.calls
        elif isinstance(record, Launch):
            if record.kernel == kernel:
                return calls
            calls = 0
    raise AssertionError(f"the program launches no {kernel}")


def test_calls_between_launches_take_the_hosts_time(tmp_path: Path) -> None:
    found = records(tmp_path)
    assert calls_before(found, "aten::fill_") == 0  # the program's start has no price
    assert calls_before(found, "aten::mul") == 1 + 10
    launches = {record.kernel: record for record in reversed(found) if isinstance(record, Launch)}
    between, calls = launches["aten::add"].issued - launches["aten::mul"].issued, calls_before(found, "aten::add")
    assert between == calls * CALL_NS + LAUNCH_NS
    assert 1 + 20 <= calls < 1 + 20 + 10  # colorsys is compiled and runs, which is some more

    sums = next(at for at, one in enumerate(found) if isinstance(one, Launch) and one.kernel == "aten::sum")
    assert (
        sum(one.calls for one in found[sums:] if isinstance(one, HostStep)) > 1 + 1 + 40
    )  # the hook, on autograd's thread


def test_without_a_price_no_call_is_counted(tmp_path: Path) -> None:
    assert not any(isinstance(record, HostStep) and record.calls for record in records(tmp_path, price=""))


def test_the_same_program_makes_the_same_calls(tmp_path: Path) -> None:
    told = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        told.append([record for record in records(tmp_path / name) if isinstance(record, HostStep)])
    assert told[0] == told[1] and len(told[0]) > 3


INLINED = """
import contextlib, sys, torch

class Pair:
    def __init__(self, left, right): self.left, self.right = left, right

@contextlib.contextmanager
def noted(): yield

x = torch.ones(8, device="cuda")
for at in range(50):
    Pair(at, [one for one in range(3)])
    {one for one in range(3)}, {one: one for one in range(3)}
    with noted(): pass
    sys._getframe()
y = x * 3
"""


def test_a_version_of_python_changes_no_count(tmp_path: Path) -> None:
    """Comprehensions and ``__init__`` have frames of their own in some; the standard library and filelock differ."""
    program, trace = tmp_path / "train.py", tmp_path / "train.trace"
    program.write_text(INLINED, encoding="utf-8")
    options = ["--dry", "--hardware", machine(tmp_path), "--trace", trace, program]
    subprocess.run([sys.executable, "-m", "streamrace", "device", *map(str, options)], env=shell(), check=True)
    found = list(TraceReader(trace).read())
    assert calls_before(found, "aten::mul") == 3 * 50  # noted(): it is made, begins, goes on


@pytest.mark.parametrize("wrong", ["0", "-1", "true"])
def test_a_price_is_a_number_above_zero(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="call_ns must be a number above 0"):
        load_profile(str(machine(tmp_path, f"call_ns = {wrong}")))

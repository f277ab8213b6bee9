"""Lines that stand in no file are executed as if they did, and every line keeps its number."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamrace.device import overlay
from streamrace.device.overlay import Insertion
from tests.warm import ROOT, shell, with_simulated_gpu

pytestmark = pytest.mark.host

SCRIPT = '''"""A program."""
from __future__ import annotations
import helper
x: Undefined = 1
helper.call()
raise RuntimeError("line 6")
'''
HELPER = """def call():
    print("helper",
          1)
"""


def test_a_script_and_what_it_imports_have_the_lines(tmp_path: Path) -> None:
    script, helper = tmp_path / "train.py", tmp_path / "helper.py"
    script.write_text(SCRIPT)
    helper.write_text(HELPER)
    file = tmp_path / "overlay.json"
    files = {
        script: [Insertion(3, "y = 2", 2), Insertion(6, "print('in front', y)", 6)],
        helper: [Insertion(4, "    print('behind')", 3)],
    }
    environment = {**shell(), "PYTHONPATH": str(ROOT), **overlay.write(files, file)}
    for _ in range(2):  # the second time from what the first one left, if it left anything
        started = with_simulated_gpu().start(
            "-m", "streamrace.device", str(script), folder=tmp_path, environment=environment
        )
        done = started.completed()
        assert done.returncode == 1
        assert done.stdout == "helper 1\nbehind\nin front 2\n", done.stderr
        assert 'train.py", line 6, in <module>' in done.stderr
        assert done.stderr.endswith("RuntimeError: line 6\n")
    assert overlay.used(file) == {script, helper}
    assert (script.read_text(), helper.read_text()) == (SCRIPT, HELPER)
    plain = with_simulated_gpu().start(
        "-m", "streamrace.device", str(script), folder=tmp_path, environment={**shell(), "PYTHONPATH": str(ROOT)}
    )
    assert plain.completed().stdout == "helper 1\n"


def test_lines_go_in_front_of_a_line_in_their_order_or_behind_the_last() -> None:
    made, numbers = overlay.put_in(["a", "b"], [Insertion(3, "c", 2), Insertion(2, "x", 2), Insertion(2, "y", 2)])
    assert made == ["a", "x", "y", "b", "c"]
    assert numbers == [1, 2, 2, 2, 2]

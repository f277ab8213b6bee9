"""The core of happens-before: small, and without torch or a framework."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = sorted((ROOT / "detectors" / "order").glob("*.py"))
MOST_LINES = 1500


def test_the_core_is_small() -> None:
    assert CORE
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in CORE) <= MOST_LINES


def test_the_core_knows_neither_torch_nor_a_framework() -> None:
    modules = [f"streamrace.detectors.order.{path.stem}" for path in CORE if path.stem != "__init__"]
    rooms = ("repro", "reports", "studies", "scenarios", "frameworks", "fuzz")
    above = ["torch", "deepspeed", "transformers", *(f"streamrace.{room}" for room in rooms)]
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print([name for name in {above!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

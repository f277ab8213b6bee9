"""Runs the code cells of a notebook one after the other, as a script, and keeps what each one printed.

``python tests/example_programs/notebook.py`` runs examples/frames.ipynb again and writes its outputs into it, as
Jupyter would. Jupyter itself is no dependency of this project.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Python = Callable[[Path, Path], "subprocess.CompletedProcess[str]"]
"""Runs a script in a folder."""

_BETWEEN = "--- the next cell ---"


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kept(notebook: dict[str, Any]) -> list[str]:
    """What each code cell printed when the notebook was saved."""
    return ["".join("".join(one["text"]) for one in cell["outputs"]) for cell in code_cells(notebook)]


def printed(notebook: dict[str, Any], folder: Path, script: Path, python: Python) -> list[str]:
    """What each code cell prints in ``folder``. ``script`` is written, and run by ``python``."""
    cells = ["".join(cell["source"]) for cell in code_cells(notebook)]
    script.write_text(f"\nprint({_BETWEEN!r})\n".join(cells), encoding="utf-8")
    done = python(script, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(f"{_BETWEEN}\n")


def refreshed(notebook: dict[str, Any], outputs: list[str]) -> str:
    """The notebook's file with these outputs."""
    for number, (cell, text) in enumerate(zip(code_cells(notebook), outputs, strict=True), start=1):
        cell["execution_count"] = number
        stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
        cell["outputs"] = [stream] if text else []
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    import tempfile

    root = Path(__file__).resolve().parents[2]
    file = root / "examples" / "frames.ipynb"
    notebook = json.loads(file.read_text(encoding="utf-8"))

    def python(script: Path, folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, str(script)], cwd=folder, capture_output=True, text=True, check=False)

    with tempfile.TemporaryDirectory() as made:
        outputs = printed(notebook, file.parent, Path(made) / "frames.py", python)
    file.write_text(refreshed(notebook, outputs), encoding="utf-8")


if __name__ == "__main__":
    main()

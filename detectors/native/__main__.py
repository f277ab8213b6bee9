"""``python -m detectors.native``: builds the engine, so that the first command need not."""

from __future__ import annotations

from detectors.native.build import library
from simgpu.compiling import BuildError

try:
    print(f"detectors: built {library().name}")
except BuildError as problem:
    raise SystemExit(f"detectors: {problem}") from None

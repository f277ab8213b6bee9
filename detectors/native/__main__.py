"""``python -m streamrace.detectors.native``: builds the engine, so that the first command need not."""

from __future__ import annotations

from streamrace.detectors.native.build import library
from streamrace.device.compiling import BuildError

try:
    print(f"detectors: built {library().name}")
except BuildError as problem:
    raise SystemExit(f"detectors: {problem}") from None

"""``python -m streamrace.detectors.native``: builds the engine, so that the first command need not."""

from __future__ import annotations

from streamrace.compiling import BuildError
from streamrace.detectors.native.build import library

try:
    print(f"detectors: built {library().name}")
except BuildError as problem:
    raise SystemExit(f"detectors: {problem}") from None

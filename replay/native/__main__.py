"""``python -m replay.native``: builds the library, so that the first command need not."""

from __future__ import annotations

from replay.native.build import library
from simgpu.compiling import BuildError

try:
    print(f"replay: built {library().name}")
except BuildError as problem:
    raise SystemExit(f"replay: {problem}") from None

"""``python -m streamrace.replay.native``: builds the library in advance, so that the first command need not."""

from __future__ import annotations

from streamrace.compiling import BuildError
from streamrace.replay.native.build import library

try:
    print(f"replay: built {library().name}")
except BuildError as problem:
    raise SystemExit(f"replay: {problem}") from None

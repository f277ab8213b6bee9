"""``streamrace device``: see :mod:`streamrace.device.launch`."""

import sys

from streamrace.device.compiling import BuildError
from streamrace.device.launch import main
from streamrace.device.substitute import go_there

try:
    go_there("simgpu", sys.argv[1:])
except BuildError as problem:
    sys.exit(f"streamrace: {problem}")
sys.exit(main(sys.argv[1:]))

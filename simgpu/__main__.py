"""``python -m simgpu``: see :mod:`simgpu.launch`."""

import sys

from simgpu.compiling import BuildError
from simgpu.launch import main
from simgpu.substitute import go_there

try:
    go_there("simgpu", sys.argv[1:])
except BuildError as problem:
    sys.exit(f"simgpu: {problem}")
sys.exit(main(sys.argv[1:]))

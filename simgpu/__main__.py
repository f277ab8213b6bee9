"""``python -m simgpu``: see :mod:`simgpu.launch`."""

import sys

from simgpu.launch import main

sys.exit(main(sys.argv[1:]))

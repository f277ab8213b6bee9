"""The command line on a machine with a GPU, for which the simulated one stands: ``python as_a_gpu.py check --on-gpu ...``.

Collectives of the simulated GPU are no operators of c10d, so the recorder is told of them.
"""

from __future__ import annotations

import sys

from streamrace.device import launch

if __name__ == "__main__":
    launch.start()
    from streamrace.repro.__main__ import main

    main(sys.argv[1:])

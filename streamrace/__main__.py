"""Runs the command ``streamrace`` as ``python -m streamrace``, for launchers that start a module."""

import os
import sys

if __name__ == "__main__":
    # The first entry is the working folder, whose files may shadow the modules imported below.
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from streamrace.repro.__main__ import run

    run()

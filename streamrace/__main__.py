"""``python -m streamrace``: the command ``streamrace``, for a launcher that starts a module."""

import os
import sys

if __name__ == "__main__":
    # Here is the working folder, whose files may have the name of a module that is imported below.
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from streamrace.repro.__main__ import run

    run()

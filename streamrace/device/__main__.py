"""Runs ``python -m streamrace.device``, for launchers that start a module: see :mod:`streamrace.device.launch`."""

import os
import sys


def run(arguments: list[str]) -> int:
    """Run the command ``streamrace device`` in this process and return its exit status."""
    from streamrace.compiling import BuildError
    from streamrace.device.launch import main
    from streamrace.device.substitute import go_there

    try:
        go_there("streamrace.device", arguments)
    except BuildError as problem:
        print(f"streamrace: {problem}", file=sys.stderr)
        return 1
    return main(arguments)


if __name__ == "__main__":
    # The first entry is this folder, whose files would shadow modules of the same name that are imported below.
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.exit(run(sys.argv[1:]))

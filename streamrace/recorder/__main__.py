"""Runs a script on this machine's GPU and records it, without judging it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from streamrace.device.scripts import Program, WrongUse
from streamrace.recorder.launch import run
from streamrace.recorder.recorder import RecorderError

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m streamrace.recorder", description=__doc__, allow_abbrev=False)
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name.")
    parser.add_argument("--trace", type=Path, required=True, metavar="FOLDER", help="Write rank0.trace there.")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...")
    options = parser.parse_args()
    program = Program(options.script, tuple(options.arguments), module=options.module)
    try:
        sys.exit(run(program, options.trace))
    except (RecorderError, WrongUse) as problem:
        print(f"Error: {problem}", file=sys.stderr)
        sys.exit(2)

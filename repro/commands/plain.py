"""Defines the argument parser of commands that run without click."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser that exits with status 2 and one sentence, in the words of the other commands."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(f"Try '{self.prog} --help' for help.\n\nError: {message}", file=sys.stderr)
        sys.exit(2)

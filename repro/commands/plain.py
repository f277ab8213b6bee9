"""What commands share that run where click is not installed, and read their options with argparse."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """One sentence and exit status 2, in the words of the other commands."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(f"Try '{self.prog} --help' for help.\n\nError: {message}", file=sys.stderr)
        sys.exit(2)

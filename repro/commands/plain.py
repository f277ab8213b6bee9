"""Defines the argument parser of commands that run without click."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from streamrace.trace import wording


class Parser(argparse.ArgumentParser):
    """A parser that exits with status 2 and one sentence, in the words of the other commands."""

    def options(self, arguments: list[str]) -> argparse.Namespace:
        """Return the options; exit if one is unknown."""
        parsed, unknown = self.parse_known_args(arguments)
        if unknown:
            kind = "option" if unknown[0].startswith("-") else "argument"
            self.error(f"No such {kind} '{unknown[0]}'{wording.near(unknown[0], self._option_string_actions)}.")
        return parsed

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(f"Try '{self.prog} --help' for help.\n\nError: {message}", file=sys.stderr)
        sys.exit(2)

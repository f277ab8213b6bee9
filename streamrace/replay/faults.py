"""Defines the error of a replay."""


class ReplayError(Exception):
    """Reports, in one sentence, that a recording cannot be replayed: not a recording, damaged, or not repeatable."""

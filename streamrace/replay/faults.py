"""The error of a replay."""


class ReplayError(Exception):
    """A recording that cannot be replayed: not one, damaged, or of work that cannot be repeated. One sentence."""

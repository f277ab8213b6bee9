"""Draws conclusions from values: where two runs differ, which partition is stale, which reads nothing wrote."""

"""Computes the answers to the papers' questions, as pandas frames."""

from pathlib import Path

FACTS = Path(__file__).with_name("facts.toml")
"""Assumptions where the papers leave something open, read by :func:`streamrace.device.hardware.facts.fact`."""

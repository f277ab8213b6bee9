"""The questions of the papers. They give pandas frames."""

from pathlib import Path

FACTS = Path(__file__).with_name("facts.toml")
"""What the papers leave open and was taken here: of :func:`streamrace.device.hardware.facts.fact`."""

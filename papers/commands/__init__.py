"""The commands of ``python -m papers``."""

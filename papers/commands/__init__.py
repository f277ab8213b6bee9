"""Implements the commands of ``python -m papers``."""

"""Reads from a trace when each stream did what."""

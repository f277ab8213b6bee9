"""Executes a recorded run again, under other timings."""

"""Finds timings under which training goes wrong, makes them small, and proves what it finds."""

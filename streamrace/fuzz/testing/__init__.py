"""Runs tests under many timings: the pytest plugin and its parts."""

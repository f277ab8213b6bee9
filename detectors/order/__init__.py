"""Happens-before: the core. Reads the records of :mod:`simgpu.trace`; knows neither torch nor a framework."""

"""Happens-before: the core. Reads the records of :mod:`streamrace.device.trace`; knows neither torch nor a framework."""

"""Happens-before: the core. Reads a trace (:mod:`streamrace.device.trace`); knows neither torch nor a framework."""

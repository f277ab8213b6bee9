"""Happens-before: the core. Reads a trace (:mod:`streamrace.trace`); knows neither torch nor a framework."""

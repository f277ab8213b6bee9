"""Witnesses of races in a program on the simulated GPU: the program runs again, live, in another timing.

Where :mod:`streamrace.fuzz.witness` executes a recording, a program of a user's own is run once more: :mod:`.recorded`
reads what its traces say of when work took place and what came of it, :mod:`.runs` starts it, :mod:`.examine` decides.
"""

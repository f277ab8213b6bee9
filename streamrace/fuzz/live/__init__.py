"""Runs a program on the simulated GPU again, live, in another timing, to witness its races.

:mod:`streamrace.fuzz.witness` executes a recording; here a user's program is run again: :mod:`.recorded` reads from its
traces when work took place and what resulted, :mod:`.runs` starts the program, :mod:`.examine` decides.
"""

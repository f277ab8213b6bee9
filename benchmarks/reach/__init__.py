"""Runs public training programs on the simulated GPU, and tells which run, and whether their values are right."""

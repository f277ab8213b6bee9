"""Runs scenarios and programs, feeds the detectors while they run, and judges the results."""

"""Implements the command line: commands, and sessions that run scenarios and programs on the simulated GPU."""

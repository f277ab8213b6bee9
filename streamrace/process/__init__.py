"""Processes: forking them, ending them, and what becomes of signals."""

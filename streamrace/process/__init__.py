"""Forks and ends processes, and handles their signals."""

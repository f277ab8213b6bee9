"""Prints the studies' tables in the terminal."""

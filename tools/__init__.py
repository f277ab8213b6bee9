"""Contains the Makefile's Python programs, which run before anything is installed, on any Python 3."""

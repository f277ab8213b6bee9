"""Declares the studies: a file each."""

"""Finds timings under which training goes wrong, makes them small, and proves what it finds.

What a test imports of it is in the package's public face (:mod:`streamrace`).
"""

"""Finds timings under which training goes wrong, shrinks them, and proves its findings.

The names that a test imports are in the package's public interface (:mod:`streamrace`).
"""

"""Implements the command line: the only package that uses scenarios, detectors and reports together."""

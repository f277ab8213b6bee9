"""Defines the trace, the record of a run: written by the device, read by detectors, metrics and reports."""

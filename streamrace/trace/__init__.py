"""The record of a run: what the device writes, and what detectors, metrics and reports read. Knows neither."""

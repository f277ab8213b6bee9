"""The command line: the only place that sees scenarios, detectors and reports together."""

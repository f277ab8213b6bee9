"""Detectors that hook into a running training program, on any device. DeepSpeed is recognised, not required."""

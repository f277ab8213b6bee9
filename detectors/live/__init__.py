"""Detectors that hook into a running training program, on any device. DeepSpeed they only recognise."""

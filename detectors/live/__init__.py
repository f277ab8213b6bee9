"""Detectors that hook into a running training program, on any device. They know torch; DeepSpeed they only recognise."""

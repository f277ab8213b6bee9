"""Sessions: what runs a scenario or a program, feeds the detectors while it runs, and judges what it left."""

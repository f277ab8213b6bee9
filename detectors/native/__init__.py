"""The happens-before engine in C++: what :mod:`detectors.order` specifies, fast enough to run beside the program."""

"""The happens-before engine in C++: what :mod:`streamrace.detectors.order` specifies, fast enough to run beside the program."""

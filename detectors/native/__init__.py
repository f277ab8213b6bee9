"""The happens-before engine in C++: what ``detectors.order`` specifies, fast enough to run beside the program."""

"""The happens-before engine in C++: the same as ``detectors.order``, fast enough to run along with the program."""

"""Puts small errors into the engine of happens-before, the device and the replay, and checks that the tests notice."""

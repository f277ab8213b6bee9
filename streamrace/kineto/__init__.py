"""Traces of torch's profiler (Kineto, Chrome's format): the file, and the order of the GPU's work that it tells."""

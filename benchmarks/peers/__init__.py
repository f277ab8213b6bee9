"""Runs tests of torch and DeepSpeed on the simulated GPU."""

"""Measures the cost of the tool: ``python -m benchmarks``. The tests measure no times."""

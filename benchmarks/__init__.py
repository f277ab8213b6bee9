"""What the tool costs, measured. ``python -m benchmarks``; the tests do not look at a clock."""

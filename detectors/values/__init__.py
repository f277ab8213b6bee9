"""What values say: where two runs differ, which partition is stale, what was read that nothing wrote."""

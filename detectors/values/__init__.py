"""Concludes from values: where two runs differ, which partition is stale, which reads found unwritten memory."""

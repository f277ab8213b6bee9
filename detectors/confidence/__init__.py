"""Examines what a clean verdict depends on: incidental waits, mechanisms never exercised, memory outside the trace."""

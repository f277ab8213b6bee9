"""Contains programs that only the studies run: torch's own DDP, and a ring on its own."""

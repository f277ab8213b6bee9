"""Programs that the studies run and the package does not: torch's own DDP, a ring by itself."""

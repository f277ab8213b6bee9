"""`streamrace fix`: where a missing order can be put, what it costs, and whether it cures."""

"""What a person reads: findings, tables, the terminal."""

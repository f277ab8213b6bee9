"""What streams did when, read from a trace."""

"""The tables that a person reads in the terminal."""

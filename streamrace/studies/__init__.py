"""Answers questions that take many dry runs, as pandas frames; ``reports`` draws the pictures."""

"""Measures what the host needs for a layer of a model, under several frameworks."""

"""Draws pictures of studies, as PNG files."""

"""Draws these studies as PNG files."""

"""Draws the charts of pages as interactive SVG."""

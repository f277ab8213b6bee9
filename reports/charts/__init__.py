"""The charts of pages, as SVG that can be explored."""

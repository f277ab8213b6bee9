"""Supplies what frameworks need beyond torch on the simulated GPU, a folder each, without modifying the frameworks."""

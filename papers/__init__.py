"""Compares the papers of hpZ and PaRO with our results: ``python -m papers``. No module of the package imports this."""

"""The papers of hpZ and PaRO beside what comes out here. ``python -m papers``; nothing of the package imports this."""

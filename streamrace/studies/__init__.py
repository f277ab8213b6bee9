"""Studies: questions that many dry runs answer together. They give pandas frames; pictures are made in ``reports``."""

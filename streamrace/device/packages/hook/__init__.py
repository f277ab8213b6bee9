"""A folder for the import path of a build, not a package to import: see ``sitecustomize.py``."""

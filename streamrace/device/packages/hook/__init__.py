"""Holds ``sitecustomize.py`` for the import path of a build. Not a package to import."""

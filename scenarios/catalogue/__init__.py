"""Holds the catalogue of known stream bugs: one program each, and the releases with and without the bug.

A program lies in a folder named by its library, which is no package: ``scenarios/catalogue/deepspeed/ds5059.py``. It
imports torch and its library as a user would, and runs under ``torchrun`` on real GPUs too. The facts of its bug are in
its head (:mod:`.entry`). ``streamrace catalogue`` runs it.
"""

"""The catalogue of known stream bugs: one program each, and the releases that have it and that do not.

A program lies in a folder named by its library, which is no package: ``scenarios/catalogue/deepspeed/ds5059.py``. It
imports torch and its library as a user would, and runs under ``torchrun`` on real GPUs too. What is known of its bug
stands in its head (:mod:`.entry`). ``streamrace catalogue`` runs it.
"""

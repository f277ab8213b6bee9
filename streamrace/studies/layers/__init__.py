"""Extrapolates a deep model's dry run from a few of its layers.

A transformer's layers are alike, so a training step repeats the same operations for each. That is shown here, not
assumed: the job is recorded with n, n + p and n + 2 p layers (all limits of the configuration unchanged), and the order
of the third, operation for operation, must match the extrapolation from the first two (:mod:`.order`). Then the same
rule gives the order with all layers; it is timed anew (:mod:`.course`), and the metrics read it like a trace.
"""

"""A deep model's dry run from a few of its layers.

A transformer's layers are alike, so what a training step does for one of them it does for the next. That is shown here,
not assumed: the job is recorded with n, n + p and n + 2 p layers (all limits of the configuration as they are), and the
order of the third, operation for operation, must be what the first two foretell (:mod:`.order`). Then the same rule
gives the order with all layers; it is timed anew (:mod:`.course`), and the metrics read it as they read a trace.
"""

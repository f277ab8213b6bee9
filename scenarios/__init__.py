"""Describes runs: models, data, sharding, cluster, timing, and the training program of each rank."""

if not __name__.startswith("streamrace."):  # a second copy of each class, unequal to the first
    raise ImportError("import streamrace.scenarios: the folder scenarios of the checkout is a part of that package")

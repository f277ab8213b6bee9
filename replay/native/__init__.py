"""What a replay does for every timing and that computes no value, in C++: times, order, numbers.

Its specification is in Python: :meth:`replay.graph.Graph.times` and :meth:`order`, and :mod:`replay.numbering`.
"""

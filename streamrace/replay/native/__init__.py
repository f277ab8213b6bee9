"""What a replay does for every timing and that computes no value, in C++: times, order, numbers.

Its specification is in Python: :meth:`streamrace.replay.graph.Graph.times` and :meth:`order`, and
:mod:`streamrace.replay.numbering`.
"""

"""Computes in C++ the parts of a replay that every timing needs and that compute no value: times, order, numbers.

The Python versions are the specification: :meth:`streamrace.replay.graph.Graph.times` and :meth:`order`, and
:mod:`streamrace.replay.numbering`.
"""

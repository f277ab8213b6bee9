"""Tests of one's own under many timings: the pytest plugin, and what it is made of."""

"""What each rank of a scenario would do at its start, done where this is imported (:mod:`tests.housed`)."""

from streamrace.scenarios.program import preload

preload()

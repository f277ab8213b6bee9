"""Several ranks on this machine: their processes (:mod:`.processes`) and how they tell each other the time."""

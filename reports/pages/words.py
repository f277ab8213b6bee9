"""The field's words as pages use them, each with what it means."""

from __future__ import annotations

WORDS = {
    "race": "Two overlapping accesses to memory, one of them a write, that nothing in the program orders.",
    "stream": "A queue of work on the device. Work on one stream runs in order; two streams run side by side.",
    "rank": "One of the processes that train together, usually one for each device. The first is 0.",
    "step": "One update of the parameters by the optimizer. The first is step 1.",
    "micro-batch": "One forward and backward pass. Several may make up a step (gradient accumulation).",
    "phase": "Where in the step: forward pass, backward pass, or the optimizer's own step.",
    "fix": "What orders the copy into the secondary partition before the all-gather that reads it.",
    "reference": "The same program, run on the CPU with gloo, without the simulated GPU.",
    "secondary partition": "A second copy of a parameter's parts, shared among the ranks of one node (hpZ).",
    "partition": "The part of a sharded parameter that one rank keeps.",
    "all-gather": "Every rank gives its part, and all of them get the whole.",
    "manifested": "In this timing the access that was issued second took effect before the other.",
    "latent": "The race is there, and this timing does not show it.",
    "stale": "A partition equals an older version of the parameter, though every access is ordered.",
    "uncovered": "A part of a partition that nothing ever wrote is read.",
    "witness": "A timing that executes the two accesses of a race the other way round.",
    "token": "A timing as a short text, which executes it again.",
    "timing": "Everything that decides durations and start times in one run.",
    "missing edge": "The wait that would order the two accesses, and that the program does not have.",
    "happens-before": "The order that the program itself lays down: streams, events, waits, collectives.",
    "gradient norm": "The length of the gradient of all parameters together, before it is clipped.",
    "checksum": "A number computed from all bits of a value: where two differ, the values do.",
    "not finite": "NaN (not a number) or Inf (beyond what the format can hold).",
    "virtual time": "The time of the simulated GPU's clock: that of the hardware profile, not of this machine.",
    "host blocked": "The time in which the program waits for the device and can issue nothing.",
    "scenario": "What was run: model, sharding, cluster, data, steps.",
    "hardware profile": "The rates of devices and networks from which durations are computed.",
}

VERDICTS = {
    "unstable": "A race is there, and in this timing it does harm.",
    "hidden": "A race is there; in this timing it happens to do no harm.",
    "stale": "All is ordered, and an older version of a parameter is used.",
    "uncovered": "A part of a secondary partition is read that nothing wrote.",
    "diverged": "Values are wrong, and no race explains it: an access may not have been seen.",
    "clean": "Every conflicting pair is ordered, and every bit is right.",
    "race": "Two accesses to the same memory that nothing in the program orders.",
    "fragile": "Every pair is ordered, some by nothing but a wait that is there for another reason.",
    "unknown": "No race was seen, but not all of the program was; or the run ended before it was judged.",
}

STUDIES = {
    **WORDS,
    "hpZ": "ZeRO++'s second copy of the parameters within a node, so that the backward pass gathers them there.",
    "ZeRO-3": "Parameters, gradients and optimizer state are divided among all ranks; no second copy is kept.",
    "gain": "How many times as fast a step with hpZ is as the same step with ZeRO-3 without it.",
    "slack": "By how much the closest of the unordered pairs kept its order; below zero the two were reversed.",
    "unordered pairs": "How often on rank 0, in the whole run, two accesses of a race met.",
    "network": "Gbit/s between nodes, for each node.",
    "harmful": "Of a pair: the other order reads another value. Else it is benign: the same was there before.",
    "race-free": "The detector found no race in the run. It looks at the order, whether or not a timing shows it.",
    "waits at the fix": "How often in a step the host waits where the fix stands.",
    "carries load": "Without it a race is found and values differ from the reference.",
    "needed, did not show": "Without it a race is found, and in this timing every value was right by luck.",
    "redundant here": "Taken away alone, in this configuration, no race is found. Elsewhere it may be needed.",
    "breaks the run": "Without it the run did not end.",
    "diverges without a race": "Without it values differ from the reference, and no race explains it.",
    "release": "A version of DeepSpeed as it was released, unmodified.",
    "plain": "The scenario as it is.",
    "padded + edit": "Sizes that do not divide among the ranks, and a parameter edited between two steps.",
    "distance": "The largest difference between the secondary partition and the parameter; plain / padded + edit.",
    "wrong values": "A parameter or a loss differs from the reference.",
}
"""The words of all pages, and those of studies."""

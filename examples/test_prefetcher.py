"""Tests of stream code, without a GPU: a marked test runs on the simulated one, under many timings.

The body runs once as any test does. Then every race that was found is executed the other way round, and random timings
are tried. What ``watch`` is given, what is asserted and what is returned must not depend on the timing. The failure
says both places, the missing wait, and a token that repeats the timing.

    python -m pytest examples/test_prefetcher.py

Verdict: one test fails, as its race changes the result, and the other passes; exit status 1.
"""

import pytest
import torch

from streamrace import watch


def double(batches, *, wait):
    """Copies each batch to the GPU on a stream of its own, and doubles it on the current one."""
    side = torch.cuda.Stream()
    results = []
    for batch in batches:
        with torch.cuda.stream(side):
            arrived = batch.to("cuda", non_blocking=True)
        if wait:
            torch.cuda.current_stream().wait_stream(side)
            arrived.record_stream(torch.cuda.current_stream())
        results.append(arrived * 2)
    return torch.stack(results)


@pytest.fixture
def batches():
    return [torch.full((64,), float(number), device="cpu").pin_memory() for number in range(3)]


@pytest.mark.stream_race(examples=10)
def test_that_nobody_waits_for_the_copy(batches):
    watch("doubled", double(batches, wait=False))


@pytest.mark.stream_race(examples=10)
def test_that_each_copy_is_waited_for(batches):
    watch("doubled", double(batches, wait=True))

"""Arrays over pinned memory: when the device's work on it can meet what is done through them unseen."""

from __future__ import annotations

import pytest
from story import Story, StoryStream, View

from streamrace.detectors.confidence.exports import Exports
from streamrace.trace.records import HOST_STREAM, Alloc, Export


def pinned(story: Story) -> View:
    view = story.block()
    story.adds(Alloc(view.block, view.hi, -1, 0))
    return view


def gives_away(story: Story, view: View, how: str = "numpy") -> None:
    _, _, _, stack = story.operation(None, None)
    story.adds(Export(view.block, how, stack, 0))


def unseen(story: Story) -> int:
    exports = Exports()
    exports.feed(0, story.trace)
    return len(exports.findings())


def copied_to(*, wait: bool, how: str = "numpy") -> tuple[Story, StoryStream, View]:
    story = Story()
    (copy,) = story.streams("copy")
    host = pinned(story)
    copy.writes(host)
    if wait:
        story.synchronizes(copy)
    gives_away(story, host, how)
    return story, copy, host


@pytest.mark.parametrize("how", ["numpy", "dlpack", "data_ptr"])
@pytest.mark.parametrize("wait", [True, False])
def test_what_is_given_away_before_the_copy_is_done_may_hide_an_access(how: str, wait: bool) -> None:
    story, _, _ = copied_to(wait=wait, how=how)
    assert unseen(story) == (0 if wait else 1)


def test_a_wait_through_another_stream_counts() -> None:
    story = Story()
    copy, compute = story.streams("copy", "compute")
    host = pinned(story)
    copy.writes(host)
    compute.waits_for(copy)
    story.synchronizes(compute)
    gives_away(story, host)
    assert unseen(story) == 0


def test_a_copy_while_the_array_lives_may_meet_it() -> None:
    story, copy, host = copied_to(wait=True)
    copy.reads(host)
    assert unseen(story) == 1


def test_an_array_that_has_gone_meets_nothing() -> None:
    story, copy, host = copied_to(wait=True)
    gives_away(story, host, "numpy released")
    copy.reads(host)
    assert unseen(story) == 0


def test_what_the_host_does_itself_is_no_work_of_the_device() -> None:
    story, _, host = copied_to(wait=True)
    (here,) = story.streams(HOST_STREAM)
    here.reads(host)
    assert unseen(story) == 0


def test_an_address_alone_is_not_told() -> None:
    story = Story()
    (copy,) = story.streams("copy")
    host = pinned(story)
    gives_away(story, host, "data_ptr")
    copy.reads(host)
    assert unseen(story) == 0


def test_one_sentence_names_the_place() -> None:
    story, copy, host = copied_to(wait=True)
    copy.reads(host)
    copy.reads(host)
    exports = Exports()
    exports.feed(0, story.trace)
    (sentence,) = exports.findings()
    assert "numpy (model.py:1 forward)" in sentence

"""The main outputs, whole: a reviewer sees each sentence that changes. See stories.py for how to write them anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.stories import Story

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("page", sorted(GOLDEN.glob("*.md")), ids=lambda page: page.stem)
def test_each_sentence_is_the_one_that_was_read(page: Path, tmp_path: Path) -> None:
    Story(page, tmp_path).follow()

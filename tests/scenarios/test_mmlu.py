"""Questions: read from files and from the datasets package, and dealt out to the ranks in batches."""

from __future__ import annotations

import csv
import random
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamrace.scenarios.mmlu import DATASET, SAMPLE, SPLITS, DataError, Question, load, prompt
from streamrace.scenarios.mmlu_batches import IGNORED, Batch, ByteTokenizer, batches
from tests.examples import examples

GOOD = "What is 2 + 2?,3,4,5,6,B\n"

# The same examples each time, and no deadline: other tests run at the same time.
repeatable = examples(60)


def folder_with(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def numbered(count: int) -> list[Question]:
    """Questions that a batch can be traced back to: their text is a number."""
    return [Question("counting", f"number {i:03}", ("a", "b", "c", "d"), i % 4) for i in range(count)]


def numbers(batch: Batch) -> list[int]:
    texts = [ByteTokenizer().decode(row) for row in batch["input_ids"].tolist()]
    return [int(text.partition("number ")[2][:3]) for text in texts]


def dealt(count: int, steps: int, **sizes: int) -> list[list[int]]:
    stream = batches(numbered(count), **({"sequence": 200, "micro_batch": 2, "rank": 0, "world": 1, "seed": 7} | sizes))
    return [numbers(batch) for batch in islice(stream, steps)]


# --- the sample ---


def test_the_sample_has_ten_questions_of_each_of_four_subjects() -> None:
    questions = load(SAMPLE)
    assert set(Counter(question.subject for question in questions).values()) == {10}
    assert len({question.subject for question in questions}) == 4
    assert len(set(questions)) == 40


def test_the_sample_has_four_different_choices_per_question_and_no_favourite_letter() -> None:
    questions = load(SAMPLE)
    assert all(len(set(question.choices)) == 4 for question in questions)
    assert all(8 <= count <= 12 for count in Counter(question.letter for question in questions).values())


def test_the_sample_has_every_split() -> None:
    assert {path.name for path in SAMPLE.iterdir()} == set(SPLITS)


# --- reading folders ---


def test_quotes_commas_and_new_lines_within_a_field_are_text(tmp_path: Path) -> None:
    row = ['Who wrote, in 1949:\n"It was a bright cold day"?', "A, B", 'so-called "C"', "line\nbreak", "x", "D"]
    file = tmp_path / "test" / "books_test.csv"
    file.parent.mkdir()
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerow(row)

    assert load(tmp_path) == [Question("books", row[0], (row[1], row[2], row[3], row[4]), 3)]


def test_order_is_by_split_then_subject_whatever_the_file_system_says(tmp_path: Path) -> None:
    folder_with(tmp_path, {f"{split}/{subject}_{split}.csv": GOOD for split in SPLITS[::-1] for subject in "zba"})
    assert "".join(question.subject for question in load(str(tmp_path))) == "abz" * 3


def test_a_missing_split_a_byte_order_mark_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    folder_with(tmp_path, {"test/sums_test.csv": "\ufeff" + GOOD + "\r\n\r\n" + GOOD + "\n"})
    assert load(tmp_path) == [Question("sums", "What is 2 + 2?", ("3", "4", "5", "6"), 1)] * 2


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", ": no question in it; fill the file or remove it."),
        ("\n\n", ": no question in it; fill the file or remove it."),
        (GOOD + "Why?,a,b,c,A\n", ", line 2: 5 columns instead of 6"),
        (GOOD + "Why, oh why?,a,b,c,d,A\n", ", line 2: 7 columns instead of 6"),
        ('"two\nlines",a,b,c,d,A\nWhy?,a,b,c,d,E\n', ", line 3: the answer is 'E'; write A, B, C or D"),
        (GOOD + "Why?,a,b,c,d,AB\n", ", line 2: the answer is 'AB'"),
        (GOOD + "Why?,a,b,c,d,\n", ", line 2: the answer is ''"),
        ("question,A,B,C,D,answer\n" + GOOD, ", line 1: the answer is 'answer'; write A, B, C or D, and no header"),
        (GOOD + '"Why?,a,b,c,d,A\n' + GOOD, ", line 2: not valid CSV"),
        (b"Caf\xe9?,a,b,c,d,A\n", ": not UTF-8 text"),
    ],
)
def test_a_damaged_file_is_named_with_the_line_and_the_cure(
    tmp_path: Path, content: str | bytes, sentence: str
) -> None:
    folder_with(tmp_path, {"dev/fine_dev.csv": GOOD, "test/bad_test.csv": content})
    with pytest.raises(DataError) as error:
        load(tmp_path)
    assert str(error.value).startswith(str(tmp_path / "test" / "bad_test.csv") + sentence)
    assert "\n" not in str(error.value)


def test_a_missing_folder_and_a_folder_without_questions(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no such folder; give a folder in MMLU's format"):
        load(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no CSV file in dev/, val/ or test/"):
        load(folder_with(tmp_path, {"loose.csv": GOOD}))


# --- the datasets package ---


class FakeDatasets(SimpleNamespace):
    """The one function of the package that is called, and the switch that keeps it from the network."""

    def __init__(self, splits: dict[str, list[dict[str, Any]]]) -> None:
        super().__init__(splits=splits, config=SimpleNamespace(HF_HUB_OFFLINE=False))

    def load_dataset(self, path: str, name: str, *, split: str) -> list[dict[str, Any]]:
        assert self.config.HF_HUB_OFFLINE
        if split not in self.splits:
            raise ConnectionError(f"Couldn't reach {path!r} on the Hub\n(details)")
        assert (path, name) == (DATASET, "all")
        return self.splits[split]  # type: ignore[no-any-return]


def record(**changes: object) -> dict[str, Any]:
    return {"question": "Why?", "subject": "law", "choices": ["a", "b", "c", "d"], "answer": 2} | changes


def test_the_dataset_gives_the_same_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDatasets({"dev": [record()], "validation": [record(answer=0)], "test": [record(answer=3)]})
    monkeypatch.setitem(sys.modules, "datasets", fake)

    assert load(DATASET) == [Question("law", "Why?", ("a", "b", "c", "d"), answer) for answer in (2, 0, 3)]
    assert not fake.config.HF_HUB_OFFLINE


def test_without_the_package_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="cais/mmlu: the package datasets is missing; install it, or give a folder"):
        load(DATASET)


def test_without_a_local_copy_nothing_is_downloaded_and_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeDatasets({})
    monkeypatch.setitem(sys.modules, "datasets", fake)
    with pytest.raises(DataError, match="not on this machine, and nothing is downloaded here .*; fetch it once with"):
        load(DATASET)
    assert not fake.config.HF_HUB_OFFLINE


@pytest.mark.parametrize(
    "damage", [{"answer": 4}, {"answer": -1}, {"answer": "B"}, {"choices": ["a", "b", "c"]}, {"question": None}]
)
def test_a_record_of_another_format_is_named(monkeypatch: pytest.MonkeyPatch, damage: dict[str, object]) -> None:
    splits = {"dev": [], "validation": [], "test": [record(), record(**damage)]}
    monkeypatch.setitem(sys.modules, "datasets", FakeDatasets(splits))
    with pytest.raises(DataError, match="cais/mmlu, record 1: not question, subject, four choices"):
        load(DATASET)


# --- prompt and tokens ---


def test_the_prompt_is_the_one_of_mmlus_authors() -> None:
    assert prompt(Question("world_history", "When?", ("1", "2", "3", "4"), 1)) == (
        "The following are multiple choice questions (with answers) about world history.\n"
        "\n"
        "When?\n"
        "A. 1\n"
        "B. 2\n"
        "C. 3\n"
        "D. 4\n"
        "Answer: B"
    )


@repeatable
@given(st.text())
def test_decoding_gives_back_what_was_encoded(text: str) -> None:
    tokenizer = ByteTokenizer()
    tokens = tokenizer.encode(text)

    assert tokenizer.decode(tokens) == text
    assert tokens[0] == tokenizer.bos and tokens[-1] == tokenizer.eos
    assert all(0 <= token < tokenizer.vocab_size for token in tokens)


@repeatable
@given(st.lists(st.integers(0, ByteTokenizer.vocab_size - 1)))
def test_any_tokens_can_be_decoded(tokens: list[int]) -> None:
    text = ByteTokenizer().decode(tokens)
    assert text == ByteTokenizer().decode(token for token in tokens if token < ByteTokenizer.bos)
    assert len(text) <= len(tokens)


# --- batches ---


def test_a_batch_has_text_then_padding_which_neither_attention_nor_loss_sees() -> None:
    batch = next(batches(numbered(3), sequence=150, micro_batch=2, rank=0, world=1, seed=7))

    assert {(tensor.dtype, tuple(tensor.shape)) for tensor in batch.values()} == {(torch.int64, (2, 150))}
    text = batch["attention_mask"] == 1
    assert 0 < int(text.sum()) < text.numel()
    assert torch.equal(text, batch["input_ids"] != ByteTokenizer.pad)
    assert torch.equal(batch["labels"], batch["input_ids"].masked_fill(~text, IGNORED))
    assert not (text[:, 1:] & ~text[:, :-1]).any()  # no text after padding


def test_a_long_prompt_keeps_its_answer() -> None:
    question = Question("law", "Why? " * 100, ("a", "b", "c", "d"), 2)
    batch = next(batches([question], sequence=16, micro_batch=1, rank=0, world=1, seed=7))

    assert ByteTokenizer().decode(batch["input_ids"][0].tolist()).endswith("D. d\nAnswer: C")
    assert batch["attention_mask"].all()


def test_the_same_seed_deals_the_same_questions_and_another_seed_others() -> None:
    assert dealt(20, steps=30) == dealt(20, steps=30)
    assert dealt(20, steps=30) != dealt(20, steps=30, seed=8)


def test_every_epoch_is_shuffled_anew() -> None:
    first, second = dealt(20, steps=2, micro_batch=20)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second


@repeatable
@given(count=st.integers(1, 30), world=st.integers(1, 8), micro_batch=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_the_ranks_together_see_each_question_once_per_epoch(
    count: int, world: int, micro_batch: int, seed: int
) -> None:
    sizes = {"world": world, "micro_batch": micro_batch, "seed": seed}
    steps = -(-2 * count // (world * micro_batch))  # two epochs, rounded up
    ranks = [dealt(count, steps, rank=rank, **sizes) for rank in range(world)]
    stream = [number for step in zip(*ranks, strict=True) for part in step for number in part]

    assert sorted(stream[:count]) == sorted(stream[count : 2 * count]) == list(range(count))
    alone = dealt(count, steps, micro_batch=world * micro_batch, seed=seed)
    assert stream == [number for step in alone for number in step]


def test_no_global_random_state_is_touched() -> None:
    python, torchs = random.getstate(), torch.get_rng_state()
    dealt(20, steps=30)
    assert random.getstate() == python
    assert torch.equal(torch.get_rng_state(), torchs)


@pytest.mark.parametrize(
    ("misuse", "sentence"),
    [
        ({"questions": []}, "There is no question to make batches of."),
        ({"sequence": 1}, "sequence 1, micro_batch 2, world 2: need at least 2, 1 and 1 of them."),
        ({"micro_batch": 0}, "sequence 16, micro_batch 0, world 2: need at least 2, 1 and 1 of them."),
        ({"rank": 2}, r"Rank 2 is not in a world of 2 \(0 to 1\)."),
        ({"rank": -1}, r"Rank -1 is not in a world of 2 \(0 to 1\)."),
    ],
)
def test_a_misuse_is_told_before_the_first_batch(misuse: dict[str, Any], sentence: str) -> None:
    right: dict[str, Any] = {"questions": numbered(3), "sequence": 16, "micro_batch": 2, "rank": 0, "world": 2}
    with pytest.raises(ValueError, match=sentence):
        batches(seed=7, **(right | misuse))


def test_the_sample_feeds_a_real_run() -> None:
    stream: Iterator[Batch] = batches(load(SAMPLE), sequence=128, micro_batch=4, rank=3, world=4, seed=1)
    for batch in islice(stream, 25):
        assert (batch["labels"] != IGNORED).any(dim=1).all()
        assert int(batch["input_ids"].max()) < ByteTokenizer.vocab_size

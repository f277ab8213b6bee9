"""Reads questions in MMLU's format, and turns them into text.

MMLU (Hendrycks et al. 2021, "Measuring Massive Multitask Language Understanding", arXiv 2009.03300) has multiple choice
questions with four choices over 57 subjects. It comes as a folder ``dev/ val/ test/`` of files
``<subject>_<split>.csv`` without a header, six columns each: question, four choices, the letter of the answer; or as
the dataset ``cais/mmlu`` of the ``datasets`` package. Both are read here. :data:`SAMPLE` is a small sample in the same
format, written for this project and not taken from MMLU.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLE = Path(__file__).parent / "data" / "mmlu"
"""The folder of the sample: 40 questions, 4 subjects."""

DATASET = "cais/mmlu"
"""The source that means the ``datasets`` package instead of a folder."""

SPLITS = ("dev", "val", "test")
LETTERS = "ABCD"
_THEIRS = {"val": "validation"}  # names in the datasets package


class DataError(Exception):
    """The questions cannot be read. One sentence: the file, the error, and how to correct it."""


@dataclass(frozen=True)
class Question:
    """A question, its four choices, and the index (0 to 3) of the right one."""

    subject: str
    question: str
    choices: tuple[str, str, str, str]
    answer: int

    @property
    def letter(self) -> str:
        """Return the right choice as A, B, C or D."""
        return LETTERS[self.answer]


def prompt(question: Question) -> str:
    """Return the text that MMLU's authors give to a model, ending with the letter of the answer."""
    choices = "".join(f"{letter}. {choice}\n" for letter, choice in zip(LETTERS, question.choices, strict=True))
    subject = question.subject.replace("_", " ")
    return (
        f"The following are multiple choice questions (with answers) about {subject}.\n\n"
        f"{question.question}\n{choices}Answer: {question.letter}"
    )


def load(source: str | Path, splits: Sequence[str] = SPLITS) -> list[Question]:
    """Load the questions of a source, in the same order each time: by split (dev, val, test), then subject.

    ``source`` is a folder in MMLU's format, or ``"cais/mmlu"`` for the copy that the ``datasets`` package has on this
    machine. Nothing is downloaded. Raises :class:`DataError` when the source is missing, empty or damaged.
    """
    return _load_dataset(splits) if str(source) == DATASET else _load_folder(Path(source), splits)


def _load_folder(folder: Path, splits: Sequence[str]) -> list[Question]:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give a folder in MMLU's format, {DATASET}, or {SAMPLE}.")
    files = [(file, split) for split in splits for file in sorted((folder / split).glob("*.csv"))]
    if not files:
        raise DataError(f"{folder}: no CSV file in {_listed(splits)}; give the folder that holds dev/, val/ and test/.")
    return [question for file, split in files for question in _read(file, file.stem.removesuffix(f"_{split}"))]


def _listed(splits: Sequence[str]) -> str:
    *others, last = (f"{split}/" for split in splits)
    return f"{', '.join(others)} or {last}" if others else last


def _read(file: Path, subject: str) -> Iterator[Question]:
    empty = True
    for line, row in _rows(file):
        empty = False
        if len(row) != 6:
            raise DataError(
                f"{file}, line {line}: {len(row)} columns instead of 6 (question, A, B, C, D, answer); "
                "add what is missing, and put quotes around a field that holds a comma, a quote or a new line."
            )
        text, a, b, c, d, letter = row
        if letter not in tuple(LETTERS):
            raise DataError(f"{file}, line {line}: the answer is {letter!r}; write A, B, C or D, and no header line.")
        yield Question(subject, text, (a, b, c, d), LETTERS.index(letter))
    if empty:
        raise DataError(f"{file}: no question in it; fill the file or remove it.")


def _rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not blank, each with the number of the line on which it begins."""
    line = 1
    try:
        # newline="": a new line within quotes belongs to the field. utf-8-sig: spreadsheets begin a file with a mark.
        with file.open(newline="", encoding="utf-8-sig") as stream:
            # strict: else a quote that is never closed swallows the rest of the file without a word.
            reader = csv.reader(stream, strict=True)
            for row in reader:
                if row:
                    yield line, row
                line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{file}, line {line}: not valid CSV ({error}); check the quotes from there on.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 text ({error}); save the file as UTF-8.") from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); check the file and its permissions.") from error


def _load_dataset(splits: Sequence[str]) -> list[Question]:
    instead = f"give a folder of MMLU's CSV files or {SAMPLE}"
    try:
        # Imported only here: the package is large, and most users do not have it.
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise DataError(f"{DATASET}: the package datasets is missing; install it, or {instead}.") from error
    # The package reads this at every access. Without it, five tries to reach the network take 23 s.
    online = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    try:
        parts = [datasets.load_dataset(DATASET, "all", split=_THEIRS.get(split, split)) for split in splits]
    except Exception as error:  # the package raises a dozen kinds, and their common base has changed between releases
        reason = str(error).strip().partition("\n")[0]
        raise DataError(
            f"{DATASET}: not on this machine, and nothing is downloaded here ({reason}); fetch it once with "
            f"datasets.load_dataset('{DATASET}', 'all'), or {instead}."
        ) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = online
    questions = [question for part in parts for question in _records(part)]
    if not questions:
        raise DataError(f"{DATASET}: no question in it; fetch it again, or {instead}.")
    return questions


def _records(records: Iterable[Mapping[str, Any]]) -> Iterator[Question]:
    for number, record in enumerate(records):
        match record:
            case {"question": str(text), "subject": str(subject), "choices": [a, b, c, d], "answer": int(answer)} if (
                0 <= answer < 4
            ):
                yield Question(subject, text, (str(a), str(b), str(c), str(d)), answer)
            case _:
                raise DataError(
                    f"{DATASET}, record {number}: not question, subject, four choices and an answer from 0 to 3; "
                    "fetch the dataset again."
                )

"""Turns questions into batches of tokens, each rank's own part.

The tokenizer needs no download: a token is a byte. The global random state is not used.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

import torch

from streamrace.scenarios.mmlu import Question, prompt

IGNORED = -100
"""The label that the loss leaves out (torch's ``ignore_index``)."""

Batch = dict[str, torch.Tensor]


class ByteTokenizer:
    """A tokenizer of the 256 bytes of UTF-8 text, and three special tokens."""

    bos = 256
    eos = 257
    pad = 258
    vocab_size = 259

    def encode(self, text: str) -> list[int]:
        """Encode as ``bos``, the bytes, ``eos``. Raises UnicodeEncodeError for half a surrogate pair (not UTF-8)."""
        return [self.bos, *text.encode(), self.eos]

    def decode(self, tokens: Iterable[int]) -> str:
        """Decode the bytes among ``tokens``; a character that was cut in two becomes U+FFFD."""
        return bytes(token for token in tokens if token < self.bos).decode(errors="replace")


def batches(
    questions: Sequence[Question],
    *,
    sequence: int,
    micro_batch: int,
    rank: int,
    world: int,
    seed: int,
) -> Iterator[Batch]:
    """Return one rank's micro-batches, without end and the same each time.

    A batch has ``input_ids``, ``attention_mask`` (1 on text, 0 on padding) and ``labels`` (the input, :data:`IGNORED`
    on padding; the model shifts them), each int64 of shape ``[micro_batch, sequence]``. A prompt that is too long loses
    its beginning, as its answer is at the end; a short one is padded at the end.

    The epochs, each shuffled anew, are one endless list that is dealt out in turn: ``micro_batch`` to rank 0,
    ``micro_batch`` to rank 1, and so on. So each question comes once per epoch, on one rank; no question is left out
    when their number does not divide; and the ranks together see the same questions as a single rank with a ``world``
    times larger batch.

    Raises ValueError, before the first batch, for no questions, a size below 1 (``sequence``: below 2, as one token
    predicts nothing), or a rank outside the world.
    """
    if not questions:
        raise ValueError("There is no question to make batches of.")
    if sequence < 2 or micro_batch < 1 or world < 1:
        raise ValueError(
            f"sequence {sequence}, micro_batch {micro_batch}, world {world}: need at least 2, 1 and 1 of them."
        )
    if not 0 <= rank < world:
        raise ValueError(f"Rank {rank} is not in a world of {world} (0 to {world - 1}).")
    # A generator of its own, so that the checks above run now and not at the first batch.
    return _batches(questions, sequence, micro_batch, rank, world, seed)


def _batches(
    questions: Sequence[Question], sequence: int, micro_batch: int, rank: int, world: int, seed: int
) -> Iterator[Batch]:
    order = _endless_shuffle(len(questions), seed)
    while True:
        turn = [next(order) for _ in range(world * micro_batch)]
        yield _batch([questions[i] for i in turn[rank * micro_batch : (rank + 1) * micro_batch]], sequence)


def _endless_shuffle(count: int, seed: int) -> Iterator[int]:
    generator = random.Random(seed)
    order = list(range(count))
    while True:
        generator.shuffle(order)
        yield from order


def _batch(questions: Sequence[Question], sequence: int) -> Batch:
    tokenizer = ByteTokenizer()
    encoded = [tokenizer.encode(prompt(question))[-sequence:] for question in questions]
    padding = [sequence - len(tokens) for tokens in encoded]
    rows = list(zip(encoded, padding, strict=True))
    return {
        "input_ids": torch.tensor([tokens + [tokenizer.pad] * pad for tokens, pad in rows]),
        "attention_mask": torch.tensor([[1] * len(tokens) + [0] * pad for tokens, pad in rows]),
        "labels": torch.tensor([tokens + [IGNORED] * pad for tokens, pad in rows]),
    }

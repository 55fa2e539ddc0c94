"""Prompts of ordinary English, none of which has a beginning in common with an earlier one."""

import random
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

ROOT = Path(__file__).parents[3]
_TEXTS = ("LICENSE", "ARCHITECTURE.md", "CONTRIBUTING.md", "README.md")


def text_ids(checkpoint: Path, texts: Sequence[str] = _TEXTS) -> list[int]:
    """Returns the token ids of texts of this repository."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    text = "\n\n".join((ROOT / name).read_text(encoding="utf-8") for name in texts)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


class Prompts:
    """Pieces of a text that begin somewhere else each."""

    def __init__(self, ids: Sequence[int], seed: int) -> None:
        self._ids = ids
        self._starts = list(range(0, len(ids) - 1100, 3))
        random.Random(seed).shuffle(self._starts)

    def fresh(self, num_tokens: int) -> list[int]:
        """Returns so many tokens, 1,100 at most, that begin where no others did."""
        start = self._starts.pop()
        return list(self._ids[start : start + num_tokens])

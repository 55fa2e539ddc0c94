"""For which sizes steps are captured. A step of another size is padded to the next one."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

DECODE_DELTAS_PER_ROW: Final = 2
"""Changes of the block table, for each row of a bucket, that captured steps carry out themselves;
a row that decodes seldom has more than one. Steps with more have them carried out before."""

_FIRST_SIZES: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_LATER_STEP: Final = 64
MIXED_DELTAS: Final = 1024
"""As those, of any captured step with prompts."""
CHUNK_ROWS: Final = 16
"""Rows of several tokens that a captured step has at most."""

_CHUNK_TOKEN_SIZES: Final = (64, 128, 256, 512, 1024, 2048)
"""What prompts and their parts often are."""
_MIXED_TOKEN_SIZES: Final = (*range(64, 640, 64), 640, 768, 896, 1536)
"""Of all rows of a step together: products take as long for padding as for what is wanted."""
_MIXED_DECODE_SIZES: Final = (0, 8, 32, 64, 128, 256)
_DRAW_SIZES: Final = (1, 8, 32, 128, 256)


@dataclass(frozen=True, slots=True)
class MixedBucket:
    """The size of a captured step with prompts: single tokens at the front, chunks behind."""

    chunk_tokens: int
    """Of all chunks together."""
    num_decode_rows: int

    @property
    def num_tokens(self) -> int:
        """Of all rows."""
        return self.num_decode_rows + self.chunk_tokens

    @property
    def num_rows(self) -> int:
        """Of any kind; as many are sampled at most."""
        return self.num_decode_rows + CHUNK_ROWS


@dataclass(frozen=True, slots=True, order=True)
class DrawBucket:
    """The size of a captured draw."""

    num_rows: int
    num_searches: int
    """Filters of the row that has most."""


def decode_buckets(max_rows: int) -> tuple[int, ...]:
    """Returns the numbers of rows that are captured, in order; the last is `max_rows`."""
    sizes = [size for size in _FIRST_SIZES if size < max_rows]
    sizes += range(_FIRST_SIZES[-1] + _LATER_STEP, max_rows, _LATER_STEP)
    return (*sizes, max_rows)


def mixed_buckets(max_tokens: int, max_rows: int) -> tuple[MixedBucket, ...]:
    """Returns the sizes of steps with prompts that are captured, those of fewest tokens first.

    Larger steps take so long that the launches of their parts are hidden behind them.
    """
    decode_sizes = [size for size in _MIXED_DECODE_SIZES if size < max_rows]
    if max_rows <= _MIXED_DECODE_SIZES[-1]:
        decode_sizes.append(max_rows)
    buckets: set[MixedBucket] = set()
    for num_rows in decode_sizes:
        totals = (*_MIXED_TOKEN_SIZES, max_tokens)
        sizes = {*_CHUNK_TOKEN_SIZES, *(num_tokens - num_rows for num_tokens in totals)}
        most = min(max_tokens - num_rows, _CHUNK_TOKEN_SIZES[-1])
        buckets |= {MixedBucket(size, num_rows) for size in sizes if 0 < size <= most}
    return tuple(sorted(buckets, key=lambda bucket: (bucket.num_tokens, bucket.num_decode_rows)))


def draw_sizes(max_rows: int) -> tuple[int, ...]:
    """Returns for how many rows draws are captured, in order; the last is `max_rows`.

    Rows that are padding cost next to nothing, so there are few.
    """
    return (*(size for size in _DRAW_SIZES if size < max_rows), max_rows)


def smallest_bucket(buckets: Sequence[int], num_rows: int) -> int | None:
    """Returns the first of sorted buckets that holds so many rows; None: none does."""
    place = bisect_left(buckets, num_rows)
    return buckets[place] if place < len(buckets) else None


def smallest_mixed_bucket(
    buckets: Sequence[MixedBucket], *, chunk_tokens: int, num_decode_rows: int
) -> MixedBucket | None:
    """Returns the first of sorted buckets that holds a step; None: none does."""
    for bucket in buckets:
        if bucket.chunk_tokens >= chunk_tokens and bucket.num_decode_rows >= num_decode_rows:
            return bucket
    return None

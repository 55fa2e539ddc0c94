"""Draws of the rows of steps that want more than the likeliest token.

What a step brings for them is a few integers a row, and the masks of guided ones; all else is in
the slots' tables. A draw is captured like a step and launched behind it, so steps whose rows want
the likeliest tokens alone know nothing of it.

Shape suffixes: S sampled rows of a step, V vocabulary, W words of 32 token bits.
"""

from collections.abc import Mapping
from itertools import cycle, product

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.cuda.buckets import DrawBucket, draw_sizes, smallest_bucket
from antiphon_engine.cuda.draw_launches import DrawTarget, make_launches
from antiphon_engine.cuda.draw_slab import DrawnRows, DrawSlab, DrawStage
from antiphon_engine.cuda.graphs import Recorder, Replay, record_all
from antiphon_engine.cuda.slot_sampling import MAX_SEARCHES, SlotSampling
from antiphon_engine.device import Device
from antiphon_engine.grammar.base import mask_words

_NUM_STAGES = 3
"""Pieces on the host in turn; one is waited for where its copy is not done."""


class SlotDraws:
    """Used by the engine's one thread. All memory is taken at once.

    Args:
        max_rows: Slots of the core, and rows of a step that are drawn at most.
        vocabulary_size: Of the model.
        last_tokens_S: int32: where the last token of each slot is kept, on the device.
        device: Where that is.
    """

    def __init__(
        self, *, max_rows: int, vocabulary_size: int, last_tokens_S: Tensor, device: Device
    ) -> None:
        self.tables = SlotSampling(
            num_slots=max_rows, vocabulary_size=vocabulary_size, device=device
        )
        num_words = mask_words(vocabulary_size)
        self._slab = DrawSlab(device.torch_device, max_rows=max_rows, num_words=num_words)
        self._stages = cycle(
            [
                DrawStage(max_rows=max_rows, num_words=num_words, pinned=device.is_cuda)
                for _ in range(_NUM_STAGES)
            ]
        )
        self._launches = make_launches(
            self.tables, last_tokens_S, max_rows=max_rows, vocabulary_size=vocabulary_size
        )
        self._sizes = draw_sizes(max_rows)
        self._captured: DrawTarget | None = None
        self._replays: Mapping[DrawBucket, Replay] = {}
        self.num_replays = 0
        """Draws that were launched by one call."""

    def capture(self, recorder: Recorder, target: DrawTarget, on_progress: OnProgress) -> None:
        """Records the draws of all buckets over the memory of captured steps."""
        buckets = [
            DrawBucket(size, num_searches)
            for size, num_searches in product(self._sizes, range(MAX_SEARCHES + 1))
        ]

        def launch(bucket: DrawBucket) -> None:
            step = self._slab.arrays(bucket.num_rows)
            self._launches.launch(step, target, num_searches=bucket.num_searches)

        self._captured = target
        self._replays = record_all(recorder, buckets, launch, on_progress)

    def launch(self, drawn: DrawnRows, words: NDArray[np.int32] | None, target: DrawTarget) -> None:
        """Launches a step's draws.

        Args:
            drawn: At least one row.
            words: [G, W] the masks that `drawn` names; None: it names none.
            target: Of the step.
        """
        self.tables.upload_new()
        bucket = smallest_bucket(self._sizes, len(drawn.rows))
        assert bucket is not None, "more rows are drawn than there are slots"
        stage = next(self._stages)
        stage.pack(drawn, bucket, words)
        self._slab.take(stage, bucket, num_masks=0 if words is None else len(words))
        num_searches = self.tables.num_searches(drawn.slots)
        if self._replays and self._is_captured(target):
            self._replays[DrawBucket(bucket, num_searches)]()
            self.num_replays += 1
        else:
            step = self._slab.arrays(bucket)
            self._launches.launch(step, target, num_searches=num_searches)

    def _is_captured(self, target: DrawTarget) -> bool:
        captured = self._captured
        return (
            captured is not None
            and target.logits_SV.data_ptr() == captured.logits_SV.data_ptr()
            and target.tokens_S.data_ptr() == captured.tokens_S.data_ptr()
        )

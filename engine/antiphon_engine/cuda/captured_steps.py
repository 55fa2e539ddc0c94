"""The launches that are captured: from a step's arrays on the device to the likeliest tokens.

Shape suffixes: B rows of a bucket, T tokens of one, V vocabulary.
"""

import torch
from torch import Tensor

from antiphon_engine.cuda.buckets import (
    CHUNK_ROWS,
    MIXED_DELTAS,
    MixedBucket,
)
from antiphon_engine.cuda.decode_slab import DecodeSlab
from antiphon_engine.cuda.device_tables import DeviceTables
from antiphon_engine.cuda.model import GraphModel
from antiphon_engine.cuda.step_edges import StepStart, make_edges
from antiphon_engine.cuda.step_rows import DecodeRows, HostRows, MixedRows
from antiphon_engine.cuda.step_slab import DeviceSlab


class CapturedSteps:
    """Steps of fixed sizes over fixed memory."""

    def __init__(
        self,
        model: GraphModel,
        slab: DeviceSlab,
        tables: DeviceTables,
        *,
        max_rows: int,
        vocabulary_size: int,
    ) -> None:
        self._model = model
        self._slab = slab
        self._tables = tables
        num_rows = max_rows + CHUNK_ROWS
        self._edges = make_edges(tables, max_rows=num_rows, vocabulary_size=vocabulary_size)
        device = slab.slots_B.device
        self.decode_slab = DecodeSlab(device, max_rows=max_rows)
        """Where steps of single tokens are taken; the others are in the slab."""
        self._input_ids_T = torch.zeros_like(slab.input_ids_T)
        self._logits_BV = torch.zeros((num_rows, vocabulary_size), device=device)
        self._likeliest_B = torch.zeros(num_rows, dtype=torch.int32, device=device)
        # Those of mixed steps are padded.
        self._all_mixed_deltas_1 = torch.full((1,), MIXED_DELTAS, dtype=torch.int32, device=device)
        self._results: dict[int, tuple[Tensor, Tensor]] = {}

    def logits(self, num_rows: int) -> Tensor:
        """Returns what the last step computed for its first rows, float32 [num_rows, V]."""
        return self._result(num_rows)[0]

    def likeliest(self, num_rows: int) -> Tensor:
        """Returns the likeliest tokens of the last step's first rows, int32 [num_rows]."""
        return self._result(num_rows)[1]

    def _result(self, num_rows: int) -> tuple[Tensor, Tensor]:
        if (views := self._results.get(num_rows)) is None:
            views = self._results[num_rows] = (
                self._logits_BV[:num_rows],
                self._likeliest_B[:num_rows],
            )
        return views

    def launch_decode(self, num_rows: int) -> None:
        """Launches a step of single tokens, all of which are sampled.

        The likeliest become the last tokens of their slots.
        """
        step, likeliest_B = self.decode_slab.arrays(num_rows), self._likeliest_B[:num_rows]
        logits_BV, ids_B = self._logits_BV[:num_rows], self._input_ids_T[:num_rows]
        self._edges.begin(
            StepStart(
                deltas_D3=step.deltas_D3,
                num_deltas_1=step.num_deltas_1,
                input_ids_T=step.input_ids_B,
                gather_slots_T=step.gather_slots_B,
                known_ids_T=ids_B,
            )
        )
        self._model.decode(
            DecodeRows(
                input_ids_B=ids_B,
                positions_B=step.positions_B,
                slots_B=step.slots_B,
                block_tables_SM=self._tables.blocks_SM,
                logits_BV=logits_BV,
            )
        )
        self._edges.find_likeliest(logits_BV, likeliest_B)
        self._edges.keep(step.slots_B, likeliest_B)

    def launch_mixed(self, bucket: MixedBucket) -> None:
        """Launches a step with prompts, of which those in `sample_rows` are sampled.

        Logits and likeliest tokens are in the order of the samples.
        """
        slab, num_tokens, num_rows = self._slab, bucket.num_tokens, bucket.num_rows
        ids_T = self._input_ids_T[:num_tokens]
        self._edges.begin(
            StepStart(
                deltas_D3=slab.table_deltas_D3[:MIXED_DELTAS],
                num_deltas_1=self._all_mixed_deltas_1,
                input_ids_T=slab.input_ids_T[:num_tokens],
                gather_slots_T=slab.gather_slots_T[:num_tokens],
                known_ids_T=ids_T,
            )
        )
        hidden_TH = self._forward(ids_T, num_rows, num_decode_rows=bucket.num_decode_rows)
        logits_BV, likeliest_B = self._logits_BV[:num_rows], self._likeliest_B[:num_rows]
        logits_BV.copy_(self._model.logits(hidden_TH[slab.sample_rows_B[:num_rows].long()]))
        self._edges.find_likeliest(logits_BV, likeliest_B)

    def launch_forward(self, num_tokens: int, host: HostRows, *, num_decode_rows: int) -> Tensor:
        """Launches the layers of a step that isn't captured; the table is changed.

        Args:
            num_tokens: Of the step.
            host: Its rows.
            num_decode_rows: Rows of one token at the front.

        Returns:
            Hidden states [T, H].
        """
        slab = self._slab
        ids_T = self._input_ids_T[:num_tokens]
        ids_T.copy_(
            self._tables.known_ids(slab.input_ids_T[:num_tokens], slab.gather_slots_T[:num_tokens])
        )
        num_rows = len(host.slots_R)
        return self._forward(ids_T, num_rows, num_decode_rows=num_decode_rows, host=host)

    def _forward(
        self, ids_T: Tensor, num_rows: int, *, num_decode_rows: int, host: HostRows | None = None
    ) -> Tensor:
        slab, num_tokens = self._slab, len(ids_T)
        return self._model.forward(
            MixedRows(
                input_ids_T=ids_T,
                positions_T=slab.positions_T[:num_tokens],
                slot_mapping_T=slab.slot_mapping_T[:num_tokens],
                row_starts_R1=slab.row_starts_B1[: num_rows + 1],
                contexts_R=slab.contexts_B[:num_rows],
                slots_R=slab.slots_B[:num_rows],
                block_tables_SM=self._tables.blocks_SM,
                num_decode_rows=num_decode_rows,
                host=host,
            )
        )

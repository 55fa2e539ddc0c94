"""A GraphModel by PyTorch's operators, and a CUDA executor of it on the CPU."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.attention.base import StepRows
from antiphon_engine.cuda.executor import CudaExecutor, ModelSizes
from antiphon_engine.cuda.graphs import Replay
from antiphon_engine.cuda.step_rows import DecodeRows, MixedRows
from antiphon_engine.device import CPU
from antiphon_engine.engine_process import LoadedModel
from antiphon_engine.executor import Executor
from antiphon_engine.kv_copies import PlainCopier
from antiphon_engine.kv_tensors import HostKv, KvTensors
from antiphon_engine.loading import describe
from antiphon_engine.model.base import LanguageModel
from antiphon_engine.model.batch import StepBatch


class RecorderThatRepeats:
    """A Recorder whose replays launch again. Knows the order in which it was asked."""

    def __init__(self) -> None:
        self.num_recorded = 0

    def record(self, launch: Callable[[], None]) -> Replay:
        launch()
        self.num_recorded += 1
        return launch


class PlainGraphModel:
    """A GraphModel over a LanguageModel. Padding gets what must never be read: NaN."""

    def __init__(self, model: LanguageModel, hidden_size: int) -> None:
        self._model = model
        self._hidden_size = hidden_size
        self._kv: KvTensors | None = None
        self.decode_sizes: list[int] = []
        """Rows of each `decode`."""
        self.mixed_sizes: list[tuple[int, int, int]] = []
        """Tokens, rows and decode rows of each `forward`."""
        self.logits_sizes: list[int] = []
        """Rows of each `logits`."""

    @property
    def kernels(self) -> Mapping[str, str]:
        return self._model.kernels

    def bind(self, kv: KvTensors) -> None:
        self._kv = kv

    def tune(self, row_counts: Sequence[int], *, budget_s: float) -> None:
        pass

    def decode(self, rows: DecodeRows) -> None:
        self.decode_sizes.append(len(rows.positions_B))
        rows.logits_BV.fill_(float("nan"))
        real = torch.nonzero(rows.positions_B >= 0)[:, 0]
        if not len(real):
            return
        assert self._kv is not None
        positions, slots = rows.positions_B[real], rows.slots_B[real]
        size = self._kv.layout.block_tokens
        blocks = rows.block_tables_SM[slots.long(), (positions // size).long()].long()
        hidden = self._forward(
            rows.input_ids_B[real],
            positions,
            blocks * size + positions % size,
            starts=torch.arange(len(real) + 1),
            contexts=positions,
            slots=slots,
            tables=rows.block_tables_SM,
        )
        rows.logits_BV[real] = self._model.logits(hidden, torch.arange(len(hidden)))

    def forward(self, rows: MixedRows) -> Tensor:
        starts = rows.row_starts_R1.tolist()
        places: list[int] = []
        bounds, kept = [0], []
        for row, (start, end) in enumerate(pairwise(starts)):
            is_padding = row < rows.num_decode_rows and int(rows.positions_T[start]) < 0
            if start < end and not is_padding:
                places += range(start, end)
                bounds.append(len(places))
                kept.append(row)
        self.mixed_sizes.append((rows.num_tokens, rows.num_rows, rows.num_decode_rows))
        size = self._hidden_size
        hidden = torch.full((rows.num_tokens, size), float("nan"), dtype=torch.float32)
        if not places:
            return hidden
        hidden[places] = self._forward(
            rows.input_ids_T[places],
            rows.positions_T[places],
            rows.slot_mapping_T[places],
            starts=torch.tensor(bounds),
            contexts=rows.contexts_R[kept],
            slots=rows.slots_R[kept],
            tables=rows.block_tables_SM,
        )
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        self.logits_sizes.append(len(hidden))
        return self._model.logits(hidden, torch.arange(len(hidden)))

    def _forward(
        self,
        ids: Tensor,
        positions: Tensor,
        places: Tensor,
        *,
        starts: Tensor,
        contexts: Tensor,
        slots: Tensor,
        tables: Tensor,
    ) -> Tensor:
        assert self._kv is not None
        bounds = starts.numpy().astype(np.int32)
        rows = StepRows(
            num_tokens=np.diff(bounds),
            token_starts=bounds[:-1],
            context_tokens=contexts.numpy().astype(np.int32),
            slots=slots.numpy().astype(np.int32),
            block_tables=(tables,),
            slot_mapping=(places.long(),),
        )
        batch = StepBatch(
            input_ids_T=ids.int(), positions_T=positions.int(), rows=rows, kv=self._kv
        )
        return self._model.hidden_states(batch).clone()


def load_on_cpu(
    config: EngineConfig, checkpoint: Path, *, recorder: RecorderThatRepeats | None
) -> tuple[LoadedModel, PlainGraphModel]:
    """The CUDA executor with a checkpoint's model on the CPU; without a recorder part by part."""
    plain = Executor(config, checkpoint)
    facts = describe(plain).facts
    layout = plain._kv.layout
    kv = KvTensors(layout)
    host = HostKv(layout, pinned=False) if layout.num_host_blocks else None
    model = PlainGraphModel(plain._model, plain.model_config.hidden_size)
    model.bind(kv)
    executor = CudaExecutor(
        config,
        model,  # type: ignore[arg-type]
        PlainCopier(kv, host),
        ModelSizes(
            max_blocks=-(-facts.context_tokens // config.block_tokens),
            vocabulary_size=facts.vocabulary_size,
        ),
        CPU,
    )
    if recorder is not None:
        executor.capture(recorder, lambda *told: None)
    return LoadedModel(executor=executor, facts=facts, device=CPU, draws=executor.draws), model

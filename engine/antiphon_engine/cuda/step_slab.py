"""A step's arrays in one piece, so that the device gets all it reads of a step by one copy.

The core plans into pinned memory; the device has one piece of the same layout, which every step
overwrites in the order of launches. So what is captured finds each array always in one place.

Shape suffixes: B rows, T tokens, D changes of the block table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon_engine import _native
from antiphon_engine.api.config import EngineConfig
from antiphon_engine.cuda.buckets import (
    CHUNK_ROWS,
    MIXED_DELTAS,
    MixedBucket,
)
from antiphon_engine.step_executor import StepBuffers, make_buffers

_ALIGNMENT: Final = 256
_ROW_FIELDS: Final = ("slot", "ctx_len", "cu_q", "sample_rows")
_TOKEN_FIELDS: Final = ("input_ids", "gather_slot", "positions", "slot_mapping")
_LAST_FIELD: Final = "table_delta"
"""At the end: its beginning alone is copied."""

_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class _Place:
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def end(self) -> int:
        return self.offset + int(np.prod(self.shape)) * self.dtype.itemsize


class SlabLayout:
    """Where each array lies in a piece."""

    def __init__(self, config: EngineConfig, *, max_blocks: int) -> None:
        self._config = config
        self._max_blocks = max_blocks
        # Steps are padded: as many tokens as rows at least, and room for the rows of a bucket.
        plain = self._plain_buffers()
        self.places: dict[str, _Place] = {}
        offset = 0
        for name in (*_ROW_FIELDS, *_TOKEN_FIELDS, _LAST_FIELD):
            array = _array_of(plain, name)
            shape = array.shape
            if name in _ROW_FIELDS:
                shape = (shape[0] + CHUNK_ROWS,)
            elif name in _TOKEN_FIELDS:
                shape = (max(config.max_step_tokens, config.max_rows),)
            elif name == _LAST_FIELD:
                shape = (max(shape[0], MIXED_DELTAS), 3)
            place = _Place(offset, shape, array.dtype)
            self.places[name] = place
            offset = -(-place.end // _ALIGNMENT) * _ALIGNMENT
        self.num_bytes = offset

    def make_host(self, *, pinned: bool) -> "HostSlab":
        """Returns a piece for the core to plan into."""
        return HostSlab(self, self._memory(pinned), self._plain_buffers())

    def make_staged(self, *, pinned: bool) -> "StagedSlab":
        """Returns a piece into which steps are laid out that the core has planned elsewhere."""
        return StagedSlab(self, self._memory(pinned))

    def arrays(self, memory: Tensor) -> dict[str, NDArray[np.generic]]:
        """Returns the arrays of a piece of the host."""
        whole: NDArray[np.uint8] = memory.numpy()
        return {
            name: whole[place.offset : place.end].view(place.dtype).reshape(place.shape)
            for name, place in self.places.items()
        }

    def used_bytes(self, num_deltas: int) -> int:
        """Returns how much of a piece a step has that changes so many places of the table."""
        return self.places[_LAST_FIELD].offset + 12 * num_deltas

    def _memory(self, pinned: bool) -> Tensor:
        return torch.zeros(self.num_bytes, dtype=torch.uint8, pin_memory=pinned)

    def _plain_buffers(self) -> StepBuffers:
        return make_buffers(self._config, max_blocks=self._max_blocks)


class HostSlab:
    """A set of step arrays, those that the device reads in one piece of memory."""

    def __init__(self, layout: SlabLayout, memory: Tensor, plain: StepBuffers) -> None:
        self.memory = memory
        buffers: dict[str, NDArray[np.generic]] = {**_as_mapping(plain), **layout.arrays(memory)}
        self.buffers = cast(StepBuffers, buffers)


class StagedSlab:
    """A piece for steps of single tokens at the front and chunks behind, padded in between."""

    def __init__(self, layout: SlabLayout, memory: Tensor) -> None:
        self.memory = memory
        self._arrays = layout.arrays(memory)

    def lay_out(self, step: StepBuffers, bucket: MixedBucket, *, scratch_slot: int) -> None:
        """Copies a planned step, of which `bucket` holds all, with its padding put in.

        Rows of single tokens are padded with ones at position -1, of the scratch slot; chunks with
        empty ones, and with tokens that go into block 0. Samples keep their order, and padding
        samples token 0.
        """
        source, target = _as_mapping(step), self._arrays
        num_rows = int(step["header"][_native.HEADER_NUM_ROWS])
        num_tokens = int(step["header"][_native.HEADER_NUM_TOKENS])
        num_decode = int(step["header"][_native.HEADER_NUM_DECODE_ROWS])
        num_samples = int(step["header"][_native.HEADER_NUM_SAMPLES])
        shift = bucket.num_decode_rows - num_decode
        fillings = {"slot": scratch_slot, "ctx_len": 0, "input_ids": 0}
        fillings |= {"gather_slot": -1, "positions": -1, "slot_mapping": 0}
        for name, filling in fillings.items():
            end, size = num_rows, bucket.num_rows
            if name in _TOKEN_FIELDS:
                end, size = num_tokens, bucket.num_tokens
            target[name][:num_decode] = source[name][:num_decode]
            target[name][num_decode : num_decode + shift] = filling
            target[name][num_decode + shift : end + shift] = source[name][num_decode:end]
            target[name][end + shift : size] = 0 if name == "positions" else filling
        starts = target["cu_q"]
        starts[: bucket.num_decode_rows + 1] = np.arange(bucket.num_decode_rows + 1)
        starts[bucket.num_decode_rows : num_rows + shift + 1] = (
            step["cu_q"][num_decode : num_rows + 1] + shift
        )
        starts[num_rows + shift + 1 : bucket.num_rows + 1] = num_tokens + shift
        samples = step["sample_rows"][:num_samples]
        target["sample_rows"][:num_samples] = np.where(
            samples < num_decode, samples, samples + shift
        )
        target["sample_rows"][num_samples : bucket.num_rows] = 0
        num_deltas = int(step["header"][_native.HEADER_NUM_TABLE_DELTAS])
        target[_LAST_FIELD][:num_deltas] = step["table_delta"][:num_deltas]
        target[_LAST_FIELD][num_deltas:MIXED_DELTAS] = (scratch_slot, 0, 0)


class DeviceSlab:
    """The device's piece, and views of its arrays."""

    def __init__(self, layout: SlabLayout, device: torch.device) -> None:
        self._layout = layout
        self._memory = torch.zeros(layout.num_bytes, dtype=torch.uint8, device=device)
        self.slots_B = self._view("slot")
        self.contexts_B = self._view("ctx_len")
        self.row_starts_B1 = self._view("cu_q")
        self.sample_rows_B = self._view("sample_rows")
        self.input_ids_T = self._view("input_ids")
        self.gather_slots_T = self._view("gather_slot")
        self.positions_T = self._view("positions")
        self.slot_mapping_T = self._view("slot_mapping")
        self.table_deltas_D3 = self._view(_LAST_FIELD)

    def take(self, host: "HostSlab | StagedSlab", *, num_deltas: int) -> None:
        """Launches the copy of a planned step; of its changes of the table, the first so many."""
        size = self._layout.used_bytes(num_deltas)
        self._memory[:size].copy_(host.memory[:size], non_blocking=True)

    def _view(self, name: str) -> Tensor:
        place = self._layout.places[name]
        dtype = {4: torch.int32, 8: torch.int64}[place.dtype.itemsize]
        return self._memory[place.offset : place.end].view(dtype).view(place.shape)


def _array_of(buffers: StepBuffers, name: str) -> NDArray[np.generic]:
    return _as_mapping(buffers)[name]


def _as_mapping(buffers: StepBuffers) -> Mapping[str, NDArray[np.generic]]:
    return cast(Mapping[str, NDArray[np.generic]], buffers)

"""Carries out the copies that a step begins with: to the host, from the host, and on write.

A plan's groups are ordered: offloads, then onloads, then copies on write; within a group nothing
depends on anything. Copies on write that read the host join the onloads: what they write is read by
no other copy. Whole blocks are copied, also where fewer tokens are asked for: the block copied on
write belongs to its request, which writes the rest before it reads it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon_engine import _native
from antiphon_engine.device import Device, Fence, PassedFence
from antiphon_engine.kv_tensors import HostKv, KvTensors
from antiphon_engine.step_executor import StepBuffers

PIECE_BLOCKS = 16
"""Blocks that are copied at once, which bounds the memory between the tiers."""
NUM_STAGES = 2
"""Pieces that CUDA has under way at once."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Copies of one kind."""

    sources: NDArray[np.int64]
    targets: NDArray[np.int64]

    def pieces(self) -> Iterator["Moves"]:
        """Returns them in order, PIECE_BLOCKS at most at a time."""
        for start in range(0, len(self.sources), PIECE_BLOCKS):
            piece = slice(start, start + PIECE_BLOCKS)
            yield Moves(self.sources[piece], self.targets[piece])


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCopies:
    """A step's copies in the order in which they are carried out."""

    offloads: Moves
    """From the device to the host."""
    onloads: Moves
    """From the host to the device."""
    on_device: Moves


def read_copies(copy_ops: NDArray[np.int32]) -> StepCopies:
    """Sorts a plan's `copy_ops` [C, 5]."""
    kinds, tiers = copy_ops[:, 0], copy_ops[:, 1]
    offloaded = kinds == _native.COPY_OFFLOAD
    from_host = ~offloaded & (tiers == _native.TIER_HOST)
    assert (tiers[offloaded] == _native.TIER_DEVICE).all(), "only the device is offloaded"

    def moves(chosen: NDArray[np.bool_]) -> Moves:
        return Moves(copy_ops[chosen, 2].astype(np.int64), copy_ops[chosen, 3].astype(np.int64))

    return StepCopies(
        offloads=moves(offloaded),
        onloads=moves(from_host),
        on_device=moves(~offloaded & ~from_host),
    )


class KvCopier(Protocol):
    """Copies blocks within and between the tiers. Used by the engine's one thread."""

    def carry_out(self, copies: StepCopies) -> Fence:
        """Launches copies ahead of the step's computation; returns the fence behind them."""


def carry_out_planned(copier: KvCopier, step: StepBuffers) -> Fence:
    """Launches the copies of a planned step, of which there may be none."""
    copy_ops = step["copy_ops"][: step["header"][_native.HEADER_NUM_COPIES]]
    return copier.carry_out(read_copies(copy_ops)) if len(copy_ops) else PassedFence()


def make_copier(kv: KvTensors, host: HostKv | None, device: Device) -> KvCopier:
    """Returns the device's way of copying. Without a `host`, plans have nothing that needs one."""
    return StreamedCopier(kv, host, device) if device.is_cuda else PlainCopier(kv, host)


class PlainCopier:
    """Copies in main memory, done when they are called for."""

    def __init__(self, kv: KvTensors, host: HostKv | None) -> None:
        self._kv = kv
        self._host = host
        self._staged_NLBKD = _staging(kv, None, PIECE_BLOCKS if host is not None else 0)

    def carry_out(self, copies: StepCopies) -> Fence:
        """See KvCopier."""
        for piece in copies.offloads.pieces():
            assert self._host is not None
            staged_NLBKD = self._staged_NLBKD[: len(piece.sources)]
            self._kv.pack(torch.from_numpy(piece.sources), staged_NLBKD)
            self._host.store(staged_NLBKD, torch.from_numpy(piece.targets))
        for piece in copies.onloads.pieces():
            assert self._host is not None
            loaded_NLBKD = self._host.load(torch.from_numpy(piece.sources))
            self._kv.unpack(loaded_NLBKD, torch.from_numpy(piece.targets))
        for piece in copies.on_device.pieces():
            self._kv.copy_blocks(torch.from_numpy(piece.sources), torch.from_numpy(piece.targets))
        return PassedFence()


class _Stage:
    """Device memory for one piece on its way, and when it may be written again."""

    def __init__(self, kv: KvTensors, device: Device) -> None:
        self.packed_NLBKD = _staging(kv, device.torch_device, PIECE_BLOCKS)
        self.free = torch.cuda.Event()


class StreamedCopier:
    """Copies on CUDA; those between the tiers run beside the computation, on a stream of their own.

    Blocks of the device are touched on the computation's stream alone, through stages: so an
    offload has read its block before the step may write it, and an onload's block is written after
    all earlier steps have read it and before this one does. Blocks of the host are touched on the
    other stream alone: so each copy finds there what the copies before it, of earlier steps too,
    have left. Events order the streams at the stages.
    """

    def __init__(self, kv: KvTensors, host: HostKv | None, device: Device) -> None:
        self._kv = kv
        self._host = host
        self._device = device
        self._beside = torch.cuda.Stream()
        self._stages = [_Stage(kv, device) for _ in range(NUM_STAGES)] if host is not None else []

    def carry_out(self, copies: StepCopies) -> Fence:
        """See KvCopier."""
        for piece in copies.offloads.pieces():
            self._offload(piece)
        for piece in copies.onloads.pieces():
            self._onload(piece)
        for piece in copies.on_device.pieces():
            self._kv.copy_blocks(
                self._device.upload(piece.sources), self._device.upload(piece.targets)
            )
        done = torch.cuda.Event()
        # The computation's stream has its own fence, at the step's end.
        done.record(self._beside)
        return done

    def _offload(self, piece: Moves) -> None:
        assert self._host is not None
        computing, stage = torch.cuda.current_stream(), self._next_stage()
        computing.wait_event(stage.free)
        staged_NLBKD = stage.packed_NLBKD[: len(piece.sources)]
        self._kv.pack(self._device.upload(piece.sources), staged_NLBKD)
        self._beside.wait_stream(computing)
        with torch.cuda.stream(self._beside):
            for staged_LBKD, block in zip(staged_NLBKD, piece.targets.tolist(), strict=True):
                self._host.block(block).copy_(staged_LBKD, non_blocking=True)
        stage.free.record(self._beside)

    def _onload(self, piece: Moves) -> None:
        assert self._host is not None
        computing, stage = torch.cuda.current_stream(), self._next_stage()
        self._beside.wait_event(stage.free)
        staged_NLBKD = stage.packed_NLBKD[: len(piece.sources)]
        with torch.cuda.stream(self._beside):
            for staged_LBKD, block in zip(staged_NLBKD, piece.sources.tolist(), strict=True):
                staged_LBKD.copy_(self._host.block(block), non_blocking=True)
        computing.wait_stream(self._beside)
        self._kv.unpack(staged_NLBKD, self._device.upload(piece.targets))
        stage.free.record(computing)

    def _next_stage(self) -> _Stage:
        self._stages.append(self._stages.pop(0))
        return self._stages[-1]


def staged_blocks(device: Device) -> int:
    """Returns how many blocks of memory copies between the tiers take beside the caches."""
    # On the CPU a piece that is stored and one that is loaded.
    return NUM_STAGES * PIECE_BLOCKS if device.is_cuda else 2 * PIECE_BLOCKS


def _staging(kv: KvTensors, device: torch.device | None, num_blocks: int) -> Tensor:
    layout = kv.layout
    return torch.empty(layout.packed_shape(num_blocks), dtype=layout.stored_dtype, device=device)

"""Computes planned steps on CUDA: by captured graphs where it can, else launch by launch.

A step is one copy of its arrays to the device and then, if it is of single tokens, one replay. Its
tokens are found on the device, kept there as the last ones of their slots, and copied back behind
it. So the next step can be launched before these tokens have reached the host.

Shape suffixes: T tokens of a step, R its rows, S its sampled rows, H hidden size, V vocabulary.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon_engine import _native
from antiphon_engine.api.config import EngineConfig
from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.cuda.buckets import (
    CHUNK_ROWS,
    DECODE_DELTAS_PER_ROW,
    MIXED_DELTAS,
    MixedBucket,
    decode_buckets,
    mixed_buckets,
    smallest_bucket,
    smallest_mixed_bucket,
)
from antiphon_engine.cuda.captured_steps import CapturedSteps
from antiphon_engine.cuda.decode_slab import DecodeStage
from antiphon_engine.cuda.device_tables import DeviceTables
from antiphon_engine.cuda.draw_launches import DrawTarget
from antiphon_engine.cuda.graphs import Recorder, Replay, record_all
from antiphon_engine.cuda.model import GraphModel
from antiphon_engine.cuda.slot_draws import SlotDraws
from antiphon_engine.cuda.step_rows import HostRows
from antiphon_engine.cuda.step_slab import DeviceSlab, HostSlab, SlabLayout
from antiphon_engine.device import Device, Fence
from antiphon_engine.kv_copies import KvCopier, carry_out_planned
from antiphon_engine.likeliest import likeliest_ids
from antiphon_engine.prompt_scores import ScoredTokens, TokenScores, score_tokens
from antiphon_engine.step_executor import StepBuffers, row_flags, sampled_rows

_NOTHING = torch.empty(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """What of a model decides how large a step's memory is."""

    max_blocks: int
    """Of the longest context."""
    vocabulary_size: int


@dataclass(slots=True)
class _Launch:
    """What is under way of a step."""

    copied: Fence
    num_rows: int
    sampled: NDArray[np.int64] | None
    """[S] the rows that are sampled, in order; None: all."""
    likeliest_S: Tensor | None = None
    keeps_likeliest: bool = False
    """Whether the likeliest tokens are the last ones of their slots already."""
    overlapped_ns: int = 0
    """How long its launch went on when it had begun."""
    hidden_TH: Tensor = field(default_factory=lambda: _NOTHING)
    """What the model made of the step's tokens, where that can be asked for."""

    @property
    def num_samples(self) -> int:
        return self.num_rows if self.sampled is None else len(self.sampled)


class _ReturnPath:
    """Where a set's tokens come back to the host."""

    def __init__(self, device: Device, num_rows: int) -> None:
        pinned = device.is_cuda
        self.tokens_B = torch.zeros(num_rows, dtype=torch.int32, pin_memory=pinned)
        self.array: NDArray[np.int32] = self.tokens_B.numpy()
        self.done = torch.cuda.Event() if device.is_cuda else None
        self._beginnings: dict[int, Tensor] = {}

    def bring(self, tokens_S: Tensor) -> None:
        """Launches the way back."""
        num = len(tokens_S)
        if (beginning := self._beginnings.get(num)) is None:
            beginning = self._beginnings[num] = self.tokens_B[:num]
        beginning.copy_(tokens_S, non_blocking=True)
        if self.done is not None:
            self.done.record()

    def wait(self) -> None:
        """Waits until it is done."""
        if self.done is not None:
            self.done.synchronize()


class CudaExecutor:
    """A StepExecutor over a model whose steps can be captured. Used by the engine's one thread.

    Args:
        config: The engine's settings.
        model: With its weights, and the cache bound to it.
        copier: Copies blocks of that cache.
        sizes: Those of the model.
        device: Where all that is. Tests have the CPU, with a recorder that launches again.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: GraphModel,
        copier: KvCopier,
        sizes: ModelSizes,
        device: Device,
    ) -> None:
        self._config = config
        self._model = model
        self._copier = copier
        self._device = device
        self._vocabulary_size = sizes.vocabulary_size
        # A context may end in its last block's first token.
        self._row_tokens = (sizes.max_blocks - 1) * config.block_tokens + 1
        layout = SlabLayout(config, max_blocks=sizes.max_blocks)
        num_sets = config.num_buffer_sets
        self._sets: list[HostSlab] = [
            layout.make_host(pinned=device.is_cuda) for _ in range(num_sets)
        ]
        self._staged = [layout.make_staged(pinned=device.is_cuda) for _ in range(num_sets)]
        self._decode_stages = [
            DecodeStage(max_rows=config.max_rows, pinned=device.is_cuda) for _ in range(num_sets)
        ]
        self._returns = [_ReturnPath(device, config.max_rows) for _ in range(num_sets)]
        self._launches: list[_Launch | None] = [None] * num_sets
        self._buckets = decode_buckets(config.max_rows)
        self._replays: Mapping[int, Replay] = {}
        self._mixed_buckets = mixed_buckets(
            max(config.max_step_tokens, config.max_rows), config.max_rows
        )
        self._mixed_replays: Mapping[MixedBucket, Replay] = {}
        with torch.inference_mode():
            self._slab = DeviceSlab(layout, device.torch_device)
            self._tables = DeviceTables(
                device.torch_device, num_slots=config.max_rows, max_blocks=sizes.max_blocks
            )
            self._captured = CapturedSteps(
                model,
                self._slab,
                self._tables,
                max_rows=config.max_rows,
                vocabulary_size=sizes.vocabulary_size,
            )
            self.draws = SlotDraws(
                max_rows=config.max_rows,
                vocabulary_size=sizes.vocabulary_size,
                last_tokens_S=self._tables.last_tokens_S,
                device=device,
            )
            """Draws of the rows that want more than the likeliest token."""
        self.num_replays = 0
        """Steps of single tokens that were launched by one call."""
        self.num_mixed_replays = 0
        """And those with prompts."""

    @torch.inference_mode()
    def capture(self, recorder: Recorder, on_progress: OnProgress) -> None:
        """Records the steps of all buckets. Without it every step is launched part by part."""
        captured = self._captured
        self._mixed_replays = record_all(
            recorder, self._mixed_buckets, captured.launch_mixed, on_progress
        )
        self._replays = record_all(recorder, self._buckets, captured.launch_decode, on_progress)
        num_rows = self._config.max_rows
        target = DrawTarget(
            logits_SV=captured.logits(num_rows), tokens_S=captured.likeliest(num_rows)
        )
        self.draws.capture(recorder, target, on_progress)

    @torch.inference_mode()
    def capture_largest(self, recorder: Recorder) -> None:
        """Records the step of most rows alone, to see what that takes."""
        size = self._buckets[-1]
        recorder.record(lambda: self._captured.launch_decode(size))

    @torch.inference_mode()
    def run_largest_step(self) -> None:
        """Runs a step of as many tokens and rows as may come, all of them sampled.

        It writes into scratch alone. To be called before any other step.
        """
        host = self._sets[0]
        step, num_rows = host.buffers, self._returns[0].array.size
        # No row is longer than a context: tables of blocks and of positions end there.
        most = num_rows * self._row_tokens
        num_tokens = max(num_rows, min(self._config.max_step_tokens, most))
        starts = np.linspace(0, num_tokens, num_rows + 1).astype(np.int32)
        step["cu_q"][: num_rows + 1] = starts
        positions = np.arange(num_tokens) - np.repeat(starts[:-1], np.diff(starts))
        step["positions"][:num_tokens] = positions
        step["gather_slot"][:num_tokens] = -1
        step["sample_rows"][:num_rows] = starts[1:] - 1
        self._slab.take(host, num_deltas=0)
        hidden_TH = self._captured.launch_forward(
            num_tokens, _host_rows(step, num_rows), num_decode_rows=0
        )
        logits_SV = self._model.logits(hidden_TH[self._slab.sample_rows_B[:num_rows].long()])
        likeliest_ids(logits_SV)

    def buffers(self, set_index: int) -> StepBuffers:
        """See StepExecutor."""
        return self._sets[set_index].buffers

    @torch.inference_mode()
    def execute(self, set_index: int) -> Tensor:
        """See StepExecutor."""
        assert self._launches[set_index] is None, "the set's last step has not been waited for"
        step = self._sets[set_index].buffers
        header = step["header"]
        num_rows = int(header[_native.HEADER_NUM_ROWS])
        num_deltas = int(header[_native.HEADER_NUM_TABLE_DELTAS])
        copied = carry_out_planned(self._copier, step)
        self._tables.settle(step["table_delta"][:num_deltas])
        num_samples = int(step["sample_indptr"][num_rows])
        sampled = None if num_samples == num_rows else sampled_rows(step)
        launch = _Launch(copied, num_rows, sampled)
        self._launches[set_index] = launch
        if not self._replays or not num_rows or row_flags(step) & _native.FLAG_PROMPT_LOGPROBS:
            return self._launch_parts(set_index, launch, num_deltas)
        bucket = self._bucket_of(step, num_rows, num_deltas)
        if bucket is not None:
            self._replay_decode(set_index, bucket)
            launch.keeps_likeliest = True
        else:
            mixed = self._mixed_bucket_of(step, num_rows, num_deltas)
            if mixed is None:
                return self._launch_parts(set_index, launch, num_deltas)
            self._replay_mixed(set_index, mixed)
        launch.likeliest_S = self._captured.likeliest(num_samples)
        return self._captured.logits(num_samples)

    def overlapped_ns(self, set_index: int) -> int:
        """See StepExecutor."""
        launch = self._launches[set_index]
        assert launch is not None
        return launch.overlapped_ns

    def likeliest(self, set_index: int) -> Tensor | None:
        """See StepExecutor."""
        launch = self._launches[set_index]
        assert launch is not None
        return launch.likeliest_S

    @torch.inference_mode()
    def score(self, set_index: int, scored: ScoredTokens) -> TokenScores:
        """See StepExecutor."""
        launch = self._launches[set_index]
        assert launch is not None
        return score_tokens(
            lambda rows_S: self._model.logits(launch.hidden_TH[rows_S]),
            scored,
            vocabulary_size=self._vocabulary_size,
            device=self._device,
        )

    @torch.inference_mode()
    def store_tokens(self, set_index: int, tokens: Tensor) -> None:
        """See StepExecutor."""
        step, launch = self._sets[set_index].buffers, self._launches[set_index]
        assert launch is not None
        assert launch.num_samples == len(tokens)
        if len(tokens) and not (launch.keeps_likeliest and tokens is launch.likeliest_S):
            rows = slice(launch.num_rows) if launch.sampled is None else launch.sampled
            # A copy: what is uploaded from ordinary memory is read at once.
            slots_S = self._device.upload(step["slot"][rows].copy())
            self._tables.set_last_tokens(slots_S, tokens)
        launch.hidden_TH = _NOTHING
        self._returns[set_index].bring(tokens)

    def wait(self, set_index: int) -> None:
        """See StepExecutor."""
        step, launch = self._sets[set_index].buffers, self._launches[set_index]
        assert launch is not None
        launch.copied.synchronize()
        returned = self._returns[set_index]
        returned.wait()
        self._launches[set_index] = None
        num_rows, sampled = launch.num_rows, launch.sampled
        if sampled is None:
            step["num_tokens"][:num_rows] = 1
            step["tokens"][:num_rows, 0] = returned.array[:num_rows]
        else:
            step["num_tokens"][:num_rows] = 0
            step["num_tokens"][sampled] = 1
            step["tokens"][sampled, 0] = returned.array[: len(sampled)]

    def _bucket_of(self, step: StepBuffers, num_rows: int, num_deltas: int) -> int | None:
        """Returns which captured step does what is planned; None: none does."""
        header = step["header"]
        if (
            int(header[_native.HEADER_NUM_TOKENS]) != num_rows
            or int(step["sample_indptr"][num_rows]) != num_rows
        ):
            return None
        bucket = smallest_bucket(self._buckets, num_rows)
        fits = bucket is not None and num_deltas <= DECODE_DELTAS_PER_ROW * bucket
        return bucket if fits else None

    def _replay_decode(self, set_index: int, bucket: int) -> None:
        step, stage = self._sets[set_index].buffers, self._decode_stages[set_index]
        num_rows = int(step["header"][_native.HEADER_NUM_ROWS])
        size = stage.pack(step, num_rows, bucket, scratch_slot=self._tables.scratch_slot)
        self._captured.decode_slab.take(stage, size)
        self._replays[bucket]()
        self.num_replays += 1

    def _mixed_bucket_of(
        self, step: StepBuffers, num_rows: int, num_deltas: int
    ) -> MixedBucket | None:
        """Returns which captured step with prompts does what is planned; None: none does."""
        header = step["header"]
        num_decode_rows = int(header[_native.HEADER_NUM_DECODE_ROWS])
        if num_rows - num_decode_rows > CHUNK_ROWS or num_deltas > MIXED_DELTAS:
            return None
        return smallest_mixed_bucket(
            self._mixed_buckets,
            chunk_tokens=int(header[_native.HEADER_NUM_TOKENS]) - num_decode_rows,
            num_decode_rows=num_decode_rows,
        )

    def _replay_mixed(self, set_index: int, bucket: MixedBucket) -> None:
        staged = self._staged[set_index]
        step = self._sets[set_index].buffers
        staged.lay_out(step, bucket, scratch_slot=self._tables.scratch_slot)
        self._slab.take(staged, num_deltas=MIXED_DELTAS)
        self._mixed_replays[bucket]()
        self.num_mixed_replays += 1

    def _launch_parts(self, set_index: int, launch: _Launch, num_deltas: int) -> Tensor:
        """Launches a step of any rows part by part; returns the logits of its samples."""
        host = self._sets[set_index]
        header = host.buffers["header"]
        num_samples = self._pad_samples(host.buffers, launch.num_samples)
        self._slab.take(host, num_deltas=num_deltas)
        begun_ns = time.perf_counter_ns()
        if num_deltas:
            self._tables.change_blocks(self._slab.table_deltas_D3[:num_deltas])
        if not launch.num_rows:
            return torch.empty((0, self._vocabulary_size), device=self._device.torch_device)
        launch.hidden_TH = self._captured.launch_forward(
            int(header[_native.HEADER_NUM_TOKENS]),
            _host_rows(host.buffers, launch.num_rows),
            num_decode_rows=int(header[_native.HEADER_NUM_DECODE_ROWS]),
        )
        sample_rows_S = self._slab.sample_rows_B[:num_samples].long()
        logits_SV = self._model.logits(launch.hidden_TH[sample_rows_S])[: launch.num_samples]
        launch.overlapped_ns = time.perf_counter_ns() - begun_ns
        return logits_SV

    def _pad_samples(self, step: StepBuffers, num_samples: int) -> int:
        """Returns how many rows' logits are computed: no other number than captured steps have.

        For each few rows more, libraries take another kernel, and loading one at its first use
        waits for the device: a mix of prompts would stand still at almost every step.
        """
        size = smallest_bucket(self._buckets, num_samples) if num_samples else 0
        assert size is not None, "no more rows are sampled than a step has"
        step["sample_rows"][num_samples:size] = 0
        return size


def _host_rows(step: StepBuffers, num_rows: int) -> HostRows:
    return HostRows(
        row_starts_R1=step["cu_q"][: num_rows + 1],
        contexts_R=step["ctx_len"][:num_rows],
        slots_R=step["slot"][:num_rows],
    )

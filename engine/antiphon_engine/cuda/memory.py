"""How large the KV cache may be on CUDA: measured by the largest step, not estimated."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_engine.memory_plan import (
    AvailableMemory,
    MemoryNeeds,
    MemoryPlan,
    available_memory_bytes,
    plan_memory,
)

SPARE_BYTES = 256 << 20
"""Left alone: libraries take workspaces at their first use, and memory comes in large pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMemory:
    """What was free as a model was loaded, with the cache of a few blocks."""

    at_start_bytes: int
    """Before the weights."""
    loaded_bytes: int
    """Behind them."""
    stepped_bytes: int
    """Behind the largest step, whose memory is still held."""
    captured_bytes: int
    """And behind the capture of the largest step of single tokens."""

    @property
    def weights_bytes(self) -> int:
        """What the weights took, with the model's own buffers."""
        return max(0, self.at_start_bytes - self.loaded_bytes)

    @property
    def step_bytes(self) -> int:
        """What steps and graphs take, and what is left alone."""
        graphs = max(0, self.stepped_bytes - self.captured_bytes)
        # Smaller graphs fit into the memory of the largest; what each takes beside it is little.
        return max(0, self.loaded_bytes - self.stepped_bytes) + 2 * graphs + SPARE_BYTES

    @property
    def cache_bytes(self) -> int:
        """What is left for the cache; may be less than nothing."""
        return self.loaded_bytes - self.step_bytes


def free_bytes() -> int:
    """Returns what the device has free, when all that was launched is done."""
    torch.cuda.synchronize()
    free, _ = torch.cuda.mem_get_info()
    return int(free)


def measure_memory(
    load: Callable[[], None], step: Callable[[], None], capture: Callable[[], None]
) -> MeasuredMemory:
    """Does these one after the other and returns what each left free.

    Raises:
        StartupError: the device's memory doesn't suffice for one of them.
    """
    marks = [free_bytes()]
    for name, work in (("the weights", load), ("the largest step", step), ("graphs", capture)):
        try:
            work()
        except torch.OutOfMemoryError as error:
            raise StartupError(
                f"not enough memory on the device for {name}: {_mib(marks[-1])} were free; lower "
                "engine.max_step_tokens or engine.max_rows, or serve a smaller model"
            ) from error
        marks.append(free_bytes())
    return MeasuredMemory(
        at_start_bytes=marks[0],
        loaded_bytes=marks[1],
        stepped_bytes=marks[2],
        captured_bytes=marks[3],
    )


def plan_device_memory(
    config: EngineConfig,
    measured: MeasuredMemory,
    *,
    kv_token_bytes: int,
    num_staged_blocks: int,
    model_context_tokens: int,
) -> MemoryPlan:
    """Sizes the cache by the settings, or by what is free.

    Raises:
        StartupError: as `plan_memory`.
    """
    if not config.kv_cache_tokens and not config.kv_cache_bytes:
        staged_bytes = num_staged_blocks * config.block_tokens * kv_token_bytes
        part = int(config.free_gpu_memory_fraction * (measured.cache_bytes - staged_bytes))
        # Scratch is on top of what is asked for; at least a block, for the message on what lacks.
        block_bytes = config.block_tokens * kv_token_bytes
        config = replace(config, kv_cache_bytes=max(block_bytes, part - block_bytes))
    return plan_memory(
        config,
        MemoryNeeds(
            weights_bytes=measured.weights_bytes,
            kv_token_bytes=kv_token_bytes,
            step_bytes=measured.step_bytes,
            num_staged_blocks=num_staged_blocks,
        ),
        model_context_tokens=model_context_tokens,
        available=AvailableMemory(
            device_bytes=measured.at_start_bytes,
            host_bytes=available_memory_bytes(),
            is_shared=False,
        ),
    )


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.0f} MiB"

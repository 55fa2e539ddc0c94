"""How long texts may be and how large the KV cache is, decided before any weights are read."""

import os
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_engine.control_groups import find_number, least_available_bytes

_log = structlog.get_logger(__name__)

_DEFAULT_CACHE_BYTES = 1 << 30
_OWN_LIMITS: Final[Mapping[int, str]] = MappingProxyType(
    {resource.RLIMIT_AS: "VmSize:", resource.RLIMIT_DATA: "VmData:"}
)
"""Limits of addresses, and what Linux calls those that are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeeds:
    """What a model takes, in bytes, apart from the cache's size."""

    weights_bytes: int
    kv_token_bytes: int
    """Of one token in the cache, over all layers."""
    step_bytes: int
    """The most that one step's intermediate results take; an estimate."""
    num_staged_blocks: int = 0
    """Blocks of memory that copies between device and host take on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableMemory:
    """What may still be allocated."""

    device_bytes: int
    host_bytes: int
    is_shared: bool
    """The device computes in the host's memory: both are the same bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The sizes that the engine runs with."""

    num_blocks: int
    """Blocks of KV cache with block 0, which is scratch."""
    block_tokens: int
    context_tokens: int
    """Prompt and output together; fits the cache."""
    num_host_blocks: int = 0
    """Blocks of KV cache in main memory, beside the device's."""

    @property
    def kv_cache_tokens(self) -> int:
        """Tokens that the cache holds."""
        return (self.num_blocks - 1) * self.block_tokens


def plan_memory(
    config: EngineConfig,
    needs: MemoryNeeds,
    *,
    model_context_tokens: int,
    available: AvailableMemory,
) -> MemoryPlan:
    """Sizes the cache as configured, and the context to fit it.

    Where no context length is configured and the checkpoint's doesn't fit the cache, the context is
    shortened with a warning.

    Raises:
        StartupError: the configured context is longer than the model's or than the cache, a cache
            holds not even a block, or weights and caches exceed the available memory.
    """
    asked = config.max_context_tokens
    if asked > model_context_tokens:
        raise StartupError(
            f"engine.max_context_tokens is {asked}, but the model takes at most "
            f"{model_context_tokens} tokens"
        )
    block_bytes = config.block_tokens * needs.kv_token_bytes
    num_blocks = _num_blocks(config, block_bytes)
    num_host_blocks = _num_host_blocks(config, block_bytes)
    context = min(asked or model_context_tokens, num_blocks * config.block_tokens)
    if context < asked:
        needed = -(-asked // config.block_tokens)
        raise StartupError(
            f"the KV cache is too small for engine.max_context_tokens = {asked}: needed "
            f"{needed} blocks of {config.block_tokens} tokens ({_mib(needed * block_bytes)}), "
            f"available {num_blocks} ({_mib(num_blocks * block_bytes)}); largest length that "
            f"fits: {context}. Raise engine.kv_cache_tokens or engine.kv_cache_bytes"
        )
    cache = _Caches(block_bytes, num_blocks + 1, num_host_blocks)
    _check_available(needs, cache, available)
    if context < model_context_tokens and not asked:
        _log.warning(
            "context limited to what the KV cache holds; raise engine.kv_cache_bytes for more",
            context_tokens=context,
            model_context_tokens=model_context_tokens,
            kv_cache_bytes_for_all=-(-model_context_tokens // config.block_tokens) * block_bytes,
        )
    # One block more: scratch takes none of what the user asked for.
    return MemoryPlan(
        num_blocks=num_blocks + 1,
        block_tokens=config.block_tokens,
        context_tokens=context,
        num_host_blocks=num_host_blocks,
    )


def available_memory_bytes(
    root: Path = Path("/"), *, limit_of: Callable[[int], tuple[int, int]] = resource.getrlimit
) -> int:
    """Returns what this process may still allocate.

    That is of the machine, of its control groups, or of its own limits, whatever is least.

    Args:
        root: Where `proc` and `sys` lie.
        limit_of: Returns a limit of this process's that holds, and its highest.
    """
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = _meminfo_available_bytes(root / "proc/meminfo") or pages
    in_groups = least_available_bytes(root)
    if in_groups is not None:
        available = min(available, in_groups)
    for kind, key in _OWN_LIMITS.items():
        limit, _ = limit_of(kind)
        if limit != resource.RLIM_INFINITY:
            used_kib = find_number(root / "proc/self/status", key) or 0
            available = min(available, max(0, limit - used_kib * 1024))
    return available


def _num_blocks(config: EngineConfig, block_bytes: int) -> int:
    if config.kv_cache_tokens:
        num_blocks = config.kv_cache_tokens // config.block_tokens
        asked = f"engine.kv_cache_tokens = {config.kv_cache_tokens}"
    else:
        size_bytes = config.kv_cache_bytes or _DEFAULT_CACHE_BYTES
        num_blocks = size_bytes // block_bytes
        asked = f"engine.kv_cache_bytes = {size_bytes}"
    if num_blocks < 1:
        raise StartupError(
            f"{asked} holds no block of KV cache: needed at least {config.block_tokens} tokens "
            f"({block_bytes} bytes)"
        )
    return num_blocks


def _num_host_blocks(config: EngineConfig, block_bytes: int) -> int:
    num_blocks = config.host_cache_bytes // block_bytes
    if config.host_cache_bytes and not num_blocks:
        raise StartupError(
            f"engine.host_cache_bytes = {config.host_cache_bytes} holds no block of KV cache: "
            f"needed at least {block_bytes} bytes, or 0 for none"
        )
    return num_blocks


@dataclass(frozen=True, slots=True)
class _Caches:
    block_bytes: int
    num_blocks: int
    num_host_blocks: int

    @property
    def host_bytes(self) -> int:
        return self.num_host_blocks * self.block_bytes


def _check_available(needs: MemoryNeeds, cache: _Caches, available: AvailableMemory) -> None:
    steps_bytes = needs.step_bytes + needs.num_staged_blocks * cache.block_bytes
    host_share = cache.host_bytes if available.is_shared else 0
    cache_bytes = cache.num_blocks * cache.block_bytes
    needed = needs.weights_bytes + cache_bytes + steps_bytes + host_share
    if needed > available.device_bytes:
        parts = [
            f"weights {_mib(needs.weights_bytes)}",
            f"KV cache {_mib(cache_bytes)}",
            *([f"host cache {_mib(host_share)}"] if host_share else []),
            f"steps {_mib(steps_bytes)}",
        ]
        left = available.device_bytes - needed + cache_bytes - cache.block_bytes
        raise StartupError(
            f"not enough memory: needed {_mib(needed)} ({', '.join(parts)}), available "
            f"{_mib(available.device_bytes)}; {_what_fits(left, needs, cache, bool(host_share))}"
        )
    if not available.is_shared and cache.host_bytes > available.host_bytes:
        raise StartupError(
            f"not enough main memory: needed {_mib(cache.host_bytes)} for engine.host_cache_bytes, "
            f"available {_mib(available.host_bytes)}; lower it"
        )


def _what_fits(left_bytes: int, needs: MemoryNeeds, cache: _Caches, has_host: bool) -> str:
    tokens = max(0, left_bytes // cache.block_bytes) * (cache.block_bytes // needs.kv_token_bytes)
    if tokens:
        return f"largest KV cache that fits: {tokens} tokens (engine.kv_cache_tokens)"
    if has_host:
        return "lower engine.host_cache_bytes"
    return "not even the weights fit: serve a smaller model"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.0f} MiB"


def _meminfo_available_bytes(path: Path) -> int | None:
    available_kib = find_number(path, "MemAvailable:")
    return None if available_kib is None else available_kib * 1024

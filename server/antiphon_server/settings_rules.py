"""What each setting may be: the one place where their ranges and choices stand."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_server.telemetry.otel_environment import SAMPLERS

Value = bool | int | float | str
"""What a setting holds."""


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `low` to `high`, both included."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]


_COUNT = Range(1, 1_000_000)
_TOKENS = Range(0, 1 << 31)
_BYTES = Range(0, 1 << 50)
_DELAY = Range(0.001, 86400)
_STEPS = Range(0, 1 << 24)
_TOKENS_OF_WORK = Range(0, 1 << 24)

RULES: Final[Mapping[str, Range | Choice]] = {
    "server.max_message_bytes": Range(64 << 10, 256 << 20),
    "server.max_connections": _COUNT,
    "server.max_streams": _COUNT,
    "server.keepalive_interval_s": Range(1, 86400),
    "server.keepalive_timeout_s": _DELAY,
    "server.min_ping_interval_s": _DELAY,
    "server.max_connection_age_s": Range(0, 30 * 86400.0),
    "server.max_connection_age_grace_s": _DELAY,
    "server.drain_limit_s": Range(0, 86400),
    "store.synchronous": Choice(("full", "normal")),
    "store.max_bytes": _BYTES,
    "sessions.idle_ttl_s": Range(1, 3650 * 86400.0),
    "sessions.max_sessions": _COUNT,
    "sessions.max_queued_turns": Range(1, 1024),
    "sessions.retention_s": Range(1, 3650 * 86400.0),
    "sessions.max_loaded": _COUNT,
    "sessions.max_watchers": Range(0, 1024),
    "sessions.reconnect_grace_s": Range(0, 86400),
    "sessions.log_grace_s": Range(0, 86400),
    "sessions.max_ended_log_bytes": _BYTES,
    "sessions.recovery_wait_s": Range(0, 86400),
    "sessions.checkpoint_tokens": _COUNT,
    "sessions.checkpoint_interval_s": _DELAY,
    "sessions.max_attempts": _COUNT,
    "limits.max_outputs": Range(1, 128),
    "limits.max_queued_requests": _COUNT,
    "limits.max_multiplexed_requests": Range(1, 65_536),
    "limits.max_undelivered_bytes": Range(64 << 10, 1 << 30),
    "limits.slow_reader_grace_s": _DELAY,
    "limits.offload_threads": Range(1, 64),
    "limits.max_offloaded_jobs": _COUNT,
    "constraints.max_size_bytes": Range(1 << 10, 16 << 20),
    "constraints.max_choices": Range(1, 65_536),
    "constraints.max_depth": Range(1, 256),
    "constraints.max_grammar_bytes": Range(1 << 10, 32 << 20),
    "constraints.max_blank_characters": Range(0, 64),
    "constraints.check_limit_s": Range(0.01, 600),
    "constraints.check_memory_bytes": Range(64 << 20, 1 << 40),
    "constraints.check_workers": Range(1, 64),
    "constraints.max_queued_checks": _COUNT,
    "constraints.cache_bytes": _BYTES,
    "quotas.max_stored_bytes": _BYTES,
    "quotas.max_queued_turns": Range(0, 1_000_000),
    "quotas.max_concurrent_requests": Range(0, 1_000_000),
    "quotas.requests_per_minute": Range(0, 1 << 40),
    "quotas.tokens_per_minute": Range(0, 1 << 50),
    "logging.level": Choice(("debug", "info", "warning", "error")),
    "logging.format": Choice(("console", "json")),
    "logging.max_repeats_per_minute": _COUNT,
    "telemetry.metrics_interval_s": Range(0.1, 86400),
    "telemetry.sampler": Choice(SAMPLERS),
    "telemetry.sample_ratio": Range(0, 1),
    "telemetry.slow_first_token_s": Range(0, 86400),
    "telemetry.max_content_bytes": Range(1, 1 << 20),
    "telemetry.max_waiting_records": _COUNT,
    "telemetry.flush_limit_s": Range(0, 60),
    "engine.dtype": Choice(("auto", "bfloat16", "float32")),
    "engine.cpu_kernels": Choice(
        (
            "auto",
            "torch",
            "portable",
            "avx2",
            "avx512",
            "avx512_bf16",
            "amx",
            "avx_vnni",
            "avx512_vnni",
        )
    ),
    "engine.quantization": Choice(("auto", "none", "int8", "int4", "fp8")),
    "engine.attention_backend": Choice(("auto", "triton", "flashinfer")),
    "engine.kv_cache_dtype": Choice(("auto", "bfloat16", "float8_e4m3")),
    "engine.device": Choice(("cpu", "cuda")),
    "engine.num_threads": Range(0, 1024),
    "engine.max_context_tokens": _TOKENS,
    "engine.kv_cache_tokens": _TOKENS,
    "engine.kv_cache_bytes": _BYTES,
    "engine.free_gpu_memory_fraction": Range(0.01, 1),
    "engine.host_cache_bytes": _BYTES,
    "engine.packed_cache_bytes": _BYTES,
    "engine.block_tokens": Choice(("8", "16", "32", "64", "128")),
    "engine.max_rows": Range(1, 4096),
    # What a step tells of prompts has to fit a frame of the link to the engine.
    "engine.max_step_tokens": Range(1, 1 << 18),
    "engine.max_requests": _COUNT,
    "engine.capacity_policy": Choice(("guaranteed_no_evict", "max_utilization", "static_batch")),
    "engine.watermark_blocks": Range(-1, 1 << 24),
    "engine.cooldown_steps": _STEPS,
    "engine.chunk_policy": Choice(("first_come_first_served", "equal_progress")),
    "engine.chunk_tokens": Range(0, 1 << 20),
    "engine.bypass_requests": Range(0, 1_000_000),
    "engine.bypass_steps": _STEPS,
    "engine.tuning_limit_s": Range(0, 3600),
    "engine.run_ahead": Range(-1, 2),
    "engine.onload_cost_tokens": _TOKENS_OF_WORK,
    "engine.onload_block_cost_tokens": _TOKENS_OF_WORK,
    "engine.grammar_cache_bytes": _BYTES,
    "engine.grammar_step_limit_ms": Range(1, 60_000),
    "engine.stall_limit_s": _DELAY,
    "engine.restart_delay_s": _DELAY,
    "engine.fault_pause_every": _STEPS,
    "engine.fault_miss_every": _STEPS,
    "engine.fault_fail_host_allocation_every": _STEPS,
    "engine.fault_max_admissions": _STEPS,
    "engine.fault_delay_commit_ms": Range(0, 60_000),
}
"""By key. Settings without an entry are switches, or text that is checked where it is used."""


def check_value(key: str, value: Value, *, source: str) -> None:
    """Checks one value against its rule.

    Args:
        key: `section.name`.
        value: The value, of the setting's type.
        source: Where it was set, for the message.

    Raises:
        StartupError: it is outside; names source, key, value and what is allowed.
    """
    rule = RULES.get(key)
    if isinstance(rule, Choice) and str(value) not in rule.words:
        allowed = ", ".join(rule.words)
        raise StartupError(f"{source}: {key} is {value!r:.100}; this release takes: {allowed}")
    if isinstance(rule, Range):
        assert not isinstance(value, str)
        if not rule.low <= value <= rule.high:
            raise StartupError(
                f"{source}: {key} is {value!r:.100}; "
                f"it must be from {rule.low:.16g} to {rule.high:.16g}"
            )


def check_together(engine: EngineConfig) -> None:
    """Checks settings of the engine that bound each other, which needs no model.

    Raises:
        StartupError: two don't go together; names both, their values and what is allowed.
    """
    block_tokens = engine.block_tokens
    blocks = f"engine.block_tokens, which is {block_tokens}"
    if engine.max_step_tokens < block_tokens:
        raise StartupError(
            f"engine.max_step_tokens is {engine.max_step_tokens}; it must be at least {blocks}, "
            "so that a prompt gets on"
        )
    if 0 < engine.chunk_tokens < block_tokens:
        raise StartupError(
            f"engine.chunk_tokens is {engine.chunk_tokens}; it must be at least {blocks}, or 0: "
            "as many as a step has room for"
        )
    if engine.max_context_tokens == 1:
        raise StartupError(
            "engine.max_context_tokens is 1; it must be at least 2, a token of prompt and one of "
            "output, or 0: as many as the checkpoint and the KV cache allow"
        )

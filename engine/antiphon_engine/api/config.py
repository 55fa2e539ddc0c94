"""Settings of the engine process: a part of the server's configuration tree."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How the engine runs. The field comments are the help texts of the settings."""

    dtype: str = "auto"
    """Element type of weights and activations: auto (the checkpoint's), bfloat16 or float32."""
    device: str = "cpu"
    """Where the model runs. This release: cpu."""
    num_threads: int = 0
    """Threads of the device's computations; 0: one per physical core that the process may use."""
    max_context_tokens: int = 0
    """Prompt and output together; 0: the checkpoint's, or as much as the KV cache holds if less."""
    kv_cache_tokens: int = 0
    """Tokens of KV cache; 0: from kv_cache_bytes."""
    kv_cache_bytes: int = 1 << 30
    """Memory for the KV cache where kv_cache_tokens is 0."""
    block_tokens: int = 32
    """Tokens in a block of KV cache: 8, 16, 32, 64 or 128."""
    max_rows: int = 64
    """Requests that run in one step."""
    max_step_tokens: int = 512
    """Tokens computed in one step, over all requests: how long a prompt can hold up streams."""
    max_requests: int = 1024
    """Outputs that the engine holds, running and waiting."""
    prefix_reuse: bool = True
    """Whether prompts reuse the KV cache of earlier requests with the same beginning."""
    stall_limit_s: float = 30.0
    """The engine counts as stalled when it gives no sign of life for this long."""
    restart_delay_s: float = 0.5
    """The wait before a dead engine is started again; doubles up to 30 s while it keeps dying."""

"""Settings of the engine process: a part of the server's configuration tree."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

CUDA_DEFAULTS: Final[Mapping[str, int]] = {"max_rows": 256, "max_step_tokens": 8192}
"""What the server takes instead of the fields' defaults where the model runs on CUDA: as much as
such a device computes at once in the time in which a CPU computes those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How the engine runs. The field comments are the help texts of the settings."""

    dtype: str = "auto"
    """Element type of weights and activations: auto (the checkpoint's), bfloat16 or float32."""
    device: str = "cpu"
    """Where the model runs: cpu or cuda."""
    cpu_kernels: str = "auto"
    """What computes on the CPU: the engine's own kernels, by auto with the instructions that are
    quickest on this machine, which a first start measures and keeps in model.cache_dir; or by the
    name of some: portable, avx2, avx512, avx512_bf16 or amx; avx_vnni or avx512_vnni, which round
    what is multiplied with integer weights to 8 bits, 32 values with one scale; or torch, PyTorch's
    operators, the reference."""
    attention_backend: str = "auto"
    """What attends to prompts on cuda: triton (the engine's own kernels), flashinfer (FlashInfer's,
    in steps of more than 2,048 tokens of prompts; `antiphon build-attention` builds them), or by
    auto what is faster of what is there, measured at the start within tuning_limit_s."""
    quantization: str = "auto"
    """How weights are kept: auto (as the checkpoint has them), none (all in dtype); on the CPU int8
    or int4 (embedding and output matrix as int8); on cuda fp8 (but for those two, 8-bit floats)."""
    packed_cache_bytes: int = 8 << 30
    """Disk space, in model.cache_dir, for weights as the CPU's kernels read them, so that later
    starts needn't pack them; 0: none."""
    num_threads: int = 0
    """Threads of the device's computations; 0: one per physical core that the process may use."""
    max_context_tokens: int = 0
    """Prompt and output together; 0: the checkpoint's, or as much as the KV cache holds if less."""
    kv_cache_dtype: str = "auto"
    """Element type of the KV cache: auto (dtype's), bfloat16 where that is dtype's, or on cuda
    float8_e4m3, 8-bit floats with a scale for each head of each token: almost twice the tokens."""
    kv_cache_tokens: int = 0
    """Tokens of KV cache; 0: from kv_cache_bytes."""
    kv_cache_bytes: int = 0
    """Memory for the KV cache where kv_cache_tokens is 0; 0: 1 GiB on cpu, and on cuda what
    free_gpu_memory_fraction says."""
    free_gpu_memory_fraction: float = 0.9
    """On cuda, the part of what weights, the largest step and captured graphs leave free that the
    KV cache takes, where neither its tokens nor its bytes are set."""
    host_cache_bytes: int = 0
    """Main memory for KV cache that has to leave the device's; 0: none."""
    block_tokens: int = 32
    """Tokens in a block of KV cache: 8, 16, 32, 64 or 128."""
    max_rows: int = 64
    """Requests that run in one step; on cuda 256, unless it is set."""
    max_step_tokens: int = 512
    """Tokens computed in one step, over all requests: how long a prompt can hold up streams. On
    cuda 8192, unless it is set."""
    max_requests: int = 1024
    """Outputs that the engine holds, running and waiting."""
    capacity_policy: str = "guaranteed_no_evict"
    """guaranteed_no_evict: a request starts when all that it can need is there; max_utilization:
    when its prompt is, and the latest is paused where that was too bold; static_batch: as the
    first, but only when the batch before has ended."""
    watermark_blocks: int = -1
    """Under max_utilization, blocks that a start leaves free while others run; -1: by the pool."""
    cooldown_steps: int = 8
    """Under max_utilization, steps in which nothing starts after a pause."""
    chunk_policy: str = "first_come_first_served"
    """How prompts share a step's tokens. first_come_first_served: each takes all it can use, so a
    short one waits for a long one before it; equal_progress: a block each in turn, so short ones
    pass long ones, and prompts that come together end together."""
    chunk_tokens: int = 0
    """Tokens of one prompt computed in one step; 0: as many as max_step_tokens leaves."""
    bypass_requests: int = 8
    """How many later requests may start before one that does not fit yet."""
    bypass_steps: int = 256
    """For how many steps later requests may start before one that does not fit yet."""
    cuda_graphs: bool = True
    """Whether steps of single tokens are captured at the start and launched at once on cuda."""
    tuning_limit_s: float = 20.0
    """How long a start on cuda may try out how to compute products; 0: not at all."""
    deterministic: bool = False
    """Whether on cuda, as on cpu always, a request's numbers do not depend on what is computed
    beside it, nor on where its prompt is cut; slower."""
    run_ahead: int = -1
    """Steps launched before an earlier one's tokens are there: 0 to 2; -1: 0 on cpu, on cuda 1, or
    0 while requests keep coming and steps are long beside the host's work."""
    prefix_reuse: bool = True
    """Whether prompts reuse the KV cache of earlier requests with the same beginning."""
    partial_reuse: bool = True
    """Whether the beginning of a block is reused too, by copying the block."""
    prefix_deferral: bool = True
    """Whether a request waits a step for a block that another one computes in it."""
    onload_cost_tokens: int = 0
    """What bringing a prefix back from main memory costs, in tokens that could be computed
    meanwhile; where the prefix is shorter, it is computed again."""
    onload_block_cost_tokens: int = 0
    """As onload_cost_tokens, for each block."""
    grammar_cache_bytes: int = 256 << 20
    """Memory for compiled grammars that later requests may use again; and as much for those that
    have grown large by the outputs that run. Beyond it, such an output fails; small grammars take
    a few MiB for each row besides."""
    grammar_step_limit_ms: int = 100
    """Processor time that a grammar may take for one token; one that takes more fails."""
    stall_limit_s: float = 30.0
    """The engine counts as stalled when it gives no sign of life for this long; while it works, its
    processor time counts."""
    restart_delay_s: float = 0.5
    """The wait before a dead engine is started again; doubles up to 30 s while it keeps dying."""
    fault_pause_every: int = 0
    """A fault on purpose: pauses the latest request every so many steps; 0: never."""
    fault_miss_every: int = 0
    """A fault on purpose: every so many prefix look-ups find nothing; 0: never."""
    fault_fail_host_allocation_every: int = 0
    """A fault on purpose: every so many blocks find no room in main memory; 0: never."""
    fault_max_admissions: int = 0
    """A fault on purpose: after so many outputs nothing starts any more; 0: never."""
    fault_delay_commit_ms: int = 0
    """A fault on purpose: every step's results wait so long; 0: never."""

    @property
    def num_steps_ahead(self) -> int:
        """The most steps that `run_ahead` allows, with what -1 stands for put in."""
        if self.run_ahead >= 0:
            return self.run_ahead
        return 1 if self.device == "cuda" else 0

    @property
    def num_buffer_sets(self) -> int:
        """Steps whose arrays are kept apart: those in flight, the one planned, one to spare."""
        return self.num_steps_ahead + 2

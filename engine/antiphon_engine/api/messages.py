"""Messages that cross the boundary between the front end and the engine process.

Frozen values, encoded with msgspec (MessagePack). Token ids and other per-token lists travel as
little-endian arrays in `bytes`, so that no object per token is built on either side.
"""

import enum
from array import array

import msgspec

from antiphon_engine.api.grammar import Grammar, Thinking
from antiphon_engine.api.prompt_logprobs import PromptLogprobs
from antiphon_engine.api.request_times import RequestTimes


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A value that crosses the boundary; its tag is the class's name."""


class FinishReason(enum.IntEnum):
    """Why an output ended, as the engine knows it."""

    END_ID = 1
    STOP_ID = 2
    MAX_OUTPUT_TOKENS = 3
    CONTEXT_FULL = 4
    CANCELLED = 5
    FINISHED_BY_CALLER = 6


class SamplingParams(_Message, frozen=True, kw_only=True):
    """How tokens are drawn: every value resolved and checked. Ranges as in the contract."""

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int
    """0 to 2**64 - 1; with the output's index it decides every draw."""


class StopParams(_Message, frozen=True, kw_only=True):
    """When the engine ends an output by itself."""

    max_output_tokens: int
    """At least 1; prompt and this fit the context."""
    min_output_tokens: int = 0
    """No end or stop id is drawn before this many output tokens."""
    end_ids: tuple[int, ...] = ()
    stop_ids: tuple[int, ...] = ()


class Scope(_Message, frozen=True, kw_only=True):
    """Within what requests share cached prefixes."""

    tenant: str = ""
    cache_scope: str = ""
    adapter: str = ""


class GenerationRequest(_Message, frozen=True, kw_only=True):
    """A request as the front end asks for it."""

    prompt: bytes
    """int32 token ids, at least one."""
    sampling: SamplingParams
    stop: StopParams
    num_outputs: int = 1
    top_logprobs: int | None = None
    """None: no log-probabilities; 0: the chosen token's only."""
    prompt_logprobs: int | None = None
    """So many of the likeliest tokens, and the token itself, are told of each of the prompt's
    positions from 1 on, once for all outputs; None: nothing."""
    num_told_positions: int = 0
    """Positions of the prompt that are known already: they are not told again."""
    scope: Scope = Scope()
    priority: int = 50
    traceparent: str = ""
    tracestate: str = ""
    """Goes with `traceparent`."""
    session: int = 0
    """A name of the session that this is a turn of, up to 2**64 - 1; 0: none. What the first output
    ends with is the session's tip. A hint to the cache, as are the two below."""
    retention_priority: int = 50
    """0, first to go, to 100: how long its KV cache stays when memory is short."""
    retention_us: int = 0
    """How long `retention_priority` holds without use; 0: for ever."""
    num_resumed_tokens: int = 0
    """The prompt's last so many ids are output that was generated before: the one output goes on
    behind them as if it had never stopped. `stop`'s limits count them, and so does OutputEnded."""

    grammar: Grammar | None = None
    """What its outputs must look like; resumed output is taken as the grammar's beginning."""
    thinking: Thinking | None = None
    """None: the output is answer from its first token."""

    @property
    def first_untold_position(self) -> int:
        """The prompt's first position that is to be told of; none stands before its first token."""
        return max(1, self.num_told_positions)

    @property
    def tells_prompt(self) -> bool:
        """Whether something of the prompt is to be told."""
        num_prompt = len(self.prompt) // 4 - self.num_resumed_tokens
        return self.prompt_logprobs is not None and self.first_untold_position < num_prompt

    def resumed_behind(
        self, token_ids: "array[int]", *, num_told_positions: int = 0
    ) -> "GenerationRequest":
        """Returns the request for what follows these ids of its output, int32.

        Of the prompt, `num_told_positions` are known by then.
        """
        return msgspec.structs.replace(
            self,
            prompt=self.prompt + token_ids.tobytes(),
            num_resumed_tokens=self.num_resumed_tokens + len(token_ids),
            num_told_positions=num_told_positions,
        )


# Front end to engine.


class Submit(_Message, frozen=True, kw_only=True):
    """Start a request. Answered by StepNews, or by RequestFailed alone."""

    request_id: int
    request: GenerationRequest


class Cancel(_Message, frozen=True, kw_only=True):
    """End all outputs of a request. Unknown or ended: ignored."""

    request_id: int


class FinishOutput(_Message, frozen=True, kw_only=True):
    """End one output of which the first `keep_tokens` are wanted (its text met a stop string)."""

    request_id: int
    output_index: int
    keep_tokens: int


class Hold(_Message, frozen=True, kw_only=True):
    """Stop working on a request until Release: its blocks go to the cache, its tokens stay.

    Tokens of steps that are under way still come. Unknown, ended or held already: ignored.
    """

    request_id: int


class Release(_Message, frozen=True, kw_only=True):
    """Go on with a request that is held, in its old place. Otherwise: ignored."""

    request_id: int


class ReadStats(_Message, frozen=True, kw_only=True):
    """Answered by Answer with a CoreStats."""

    query_id: int


class FlushPrefixCache(_Message, frozen=True, kw_only=True):
    """Answered by Answer with the number of blocks forgotten."""

    query_id: int


class MatchPrefix(_Message, frozen=True, kw_only=True):
    """Answered by Answer with the number of leading tokens whose KV cache is there."""

    query_id: int
    scope: Scope
    tokens: bytes


class CloseSession(_Message, frozen=True, kw_only=True):
    """A hint: nothing more comes of a session. Not answered, as the next two."""

    session: int


class ForkSession(_Message, frozen=True, kw_only=True):
    """A hint: `new_session` goes on where `session` stands."""

    session: int
    new_session: int


class RewindSession(_Message, frozen=True, kw_only=True):
    """A hint: a session goes on behind its first `num_tokens` tokens."""

    session: int
    num_tokens: int


class Shutdown(_Message, frozen=True, kw_only=True):
    """End the process. Running requests are not waited for."""


# Engine to front end.


class CoreStats(_Message, frozen=True, kw_only=True):
    """The engine's counters; names and meaning as in the contract's EngineStats, where it has them.

    `num_blocks…` are the device's, `num_host_blocks…` those in main memory.
    """

    step: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_paused: int = 0
    num_held: int = 0
    """Neither running, waiting nor paused: their caller has asked for a rest."""
    num_guides: int = 0
    num_blocks: int = 0
    num_blocks_used: int = 0
    num_blocks_cached: int = 0
    num_blocks_free: int = 0
    num_host_blocks: int = 0
    num_host_blocks_used: int = 0
    num_prefilled_tokens_total: int = 0
    num_recomputed_tokens_total: int = 0
    """Computed again after a pause or a hold; not in `num_prefilled_tokens_total`."""
    num_reused_tokens_total: int = 0
    num_generated_tokens_total: int = 0
    num_preemptions_total: int = 0
    num_evictions_total: int = 0
    num_offloads_total: int = 0
    """Blocks copied to main memory."""
    num_onloads_total: int = 0
    """Blocks copied back."""
    num_copies_on_write_total: int = 0
    """Blocks copied because a request goes on inside them."""
    num_deferrals_total: int = 0
    """Waits for a block that another request was computing."""
    num_bypasses_total: int = 0
    """Starts before a request that did not fit yet."""
    num_finished_total: dict[str, int] = {}
    num_matched_tokens_total: int = 0
    """Tokens by which grammars' matchers were advanced."""
    num_masks_total: int = 0
    """Rows whose tokens were restricted before one was drawn."""
    num_late_masks_total: int = 0
    """Masks that took so long that their steps went on without their rows."""
    mask_time_ns_total: int = 0
    """Processor time that took, beside the forward pass."""
    step_time_ns: int = 0
    schedule_time_ns: int = 0


class LoadProgress(_Message, frozen=True, kw_only=True):
    """How far start-up is, for people who wait."""

    stage: str
    done: int = 0
    total: int = 0


class Ready(_Message, frozen=True, kw_only=True):
    """The model is loaded; requests may come. Facts that only the engine knows."""

    architecture: str
    device: str
    dtype: str
    quantization: str
    kv_cache_dtype: str
    kernels: dict[str, str]
    """Which compute it, by part; both as the contract's Model names them."""
    vocabulary_size: int
    """Rows of the output matrix; may exceed the tokenizer's."""
    context_tokens: int
    kv_cache_tokens: int
    block_tokens: int
    max_rows: int
    """Requests that run at once; fewer than the setting where the step's tokens are too few."""
    max_step_tokens: int
    max_top_logprobs: int


class LoadFailed(_Message, frozen=True, kw_only=True):
    """The engine can't start; `message` is one clear line. The process ends."""

    message: str


class Started(_Message, frozen=True, kw_only=True):
    """A request's first step ran."""

    request_id: int
    cached_prompt_tokens: int
    step_start_ns: int
    """CLOCK_MONOTONIC."""


class OutputEnded(_Message, frozen=True, kw_only=True):
    """An output's last token came in this step, or it was ended from outside."""

    request_id: int
    output_index: int
    reason: FinishReason
    num_tokens: int
    num_steps: int
    num_preemptions: int = 0
    times: RequestTimes | None = None
    """Of output 0; None of the others."""


class TokenLogprobs(_Message, frozen=True, kw_only=True):
    """Log-probabilities of one row's new token: the chosen one, then the likeliest in order."""

    request_id: int
    output_index: int
    chosen: float
    top_ids: bytes
    """int32."""
    top_logprobs: bytes
    """float32."""


class StepNews(_Message, frozen=True, kw_only=True):
    """What one engine step brought, for all requests: row i has one token of one output."""

    step: int
    start_ns: int
    end_ns: int
    request_ids: bytes = b""
    """uint64 per row."""
    output_indices: bytes = b""
    """int32 per row."""
    token_ids: bytes = b""
    """int32 per row."""
    started: list[Started] = []
    prompt_logprobs: list[PromptLogprobs] = []
    logprobs: list[TokenLogprobs] = []
    ended: list[OutputEnded] = []

    @property
    def has_tokens_only(self) -> bool:
        """Whether nothing starts or ends in it, and nothing is told of a prompt."""
        return not (self.started or self.prompt_logprobs or self.ended)


class RequestFailed(_Message, frozen=True, kw_only=True):
    """A request ended without an answer; no more news of it comes."""

    request_id: int
    reason: str
    """An ErrorReason."""
    message: str
    metadata: dict[str, str] = {}


class Answer(_Message, frozen=True, kw_only=True):
    """The answer to a query."""

    query_id: int
    value: int | CoreStats


ToEngine = (
    Submit
    | Cancel
    | FinishOutput
    | Hold
    | Release
    | ReadStats
    | FlushPrefixCache
    | MatchPrefix
    | CloseSession
    | ForkSession
    | RewindSession
    | Shutdown
)
ToFrontEnd = LoadProgress | Ready | LoadFailed | StepNews | RequestFailed | Answer

"""When what happened to a request, as the engine's core has stamped it.

Frozen values, encoded like the other messages, once with the end of a request. Instants are
nanoseconds of CLOCK_MONOTONIC, which both processes share.
"""

import msgspec


class PrefillChunk(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A part of a prompt's computation: one engine step, or several next to each other."""

    start_ns: int
    """Its first step was planned. Chunks overlap where steps are planned ahead."""
    end_ns: int
    """Its last step was executed."""
    step: int
    """The first, as CoreStats.step counts them."""
    num_steps: int
    num_tokens: int
    """Those too that a rest made the engine compute again."""
    num_rows: int
    """Of its batch, its own included; of several steps, the most."""


class Rest(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A time in which a request that had had a row had no memory."""

    start_ns: int
    end_ns: int
    """Its next row was planned, or it ended."""
    held: bool
    """At its caller's wish; else it was paused to make room for others."""


class RequestTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one output of a request. Rows that came to nothing are no steps."""

    arrival_ns: int
    """The engine received the request."""
    grammar_wait_ns: int = 0
    """How long it then waited for its grammar, until that was compiled or it ended; 0: for none."""
    num_mask_waits: int = 0
    """How often it had no row because the mask of its next token was not there yet."""
    mask_wait_ns: int = 0
    """How long that took together, beside other requests' steps."""
    num_steps: int
    num_preemptions: int
    num_rests: int
    """Pauses and holds, those too that aren't in `rests`."""
    rest_ns: int
    """How long they took together."""
    num_batch_rows: int
    """Rows of the batches of its steps, added up."""
    max_batch_rows: int
    num_device_reused: int
    """Prompt tokens whose KV cache was on the device, as found by others' or its own past work."""
    num_host_reused: int
    """Those whose KV cache was brought back from main memory."""
    num_recomputed: int
    """Tokens computed again after rests."""
    chunks: list[PrefillChunk] = []
    """Up to the first output token, in order: the first 32, all between as one, and the last."""
    rests: list[Rest] = []
    """The first 16, in order."""

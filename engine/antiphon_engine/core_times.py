"""Reads what the core has stamped of a request."""

from antiphon_engine import _native
from antiphon_engine.api.request_times import PrefillChunk, RequestTimes, Rest


def read_times(
    core: _native.EngineCore,
    handle: int,
    *,
    grammar_wait_ns: int = 0,
    num_mask_waits: int = 0,
    mask_wait_ns: int = 0,
) -> RequestTimes:
    """Returns what happened to a core request up to now or its end.

    To be called before anything is submitted behind that end.

    Args:
        core: Whose it is.
        handle: Its.
        grammar_wait_ns: What passed before the core had it; see RequestTimes.
        num_mask_waits: How often it sat out for its masks.
        mask_wait_ns: For how long in all.
    """
    told = core.times(handle)
    assert told is not None, f"the place of core request {handle} has another"
    counts, chunks, rests = told
    return RequestTimes(
        **counts,
        grammar_wait_ns=grammar_wait_ns,
        num_mask_waits=num_mask_waits,
        mask_wait_ns=mask_wait_ns,
        chunks=[
            PrefillChunk(
                start_ns=start_ns,
                end_ns=end_ns,
                step=step,
                num_steps=num_steps,
                num_tokens=num_tokens,
                num_rows=num_rows,
            )
            for start_ns, end_ns, step, num_steps, num_tokens, num_rows in chunks.tolist()
        ],
        rests=[
            Rest(start_ns=start_ns, end_ns=end_ns, held=bool(held))
            for start_ns, end_ns, held in rests.tolist()
        ],
    )


def times_without_steps(*, arrival_ns: int, grammar_wait_ns: int) -> RequestTimes:
    """Returns what happened to a request that ended while it waited for its grammar."""
    return RequestTimes(
        arrival_ns=arrival_ns,
        grammar_wait_ns=grammar_wait_ns,
        num_steps=0,
        num_preemptions=0,
        num_rests=0,
        rest_ns=0,
        num_batch_rows=0,
        max_batch_rows=0,
        num_device_reused=0,
        num_host_reused=0,
        num_recomputed=0,
    )

"""What fake engines tell of when things happened to a request."""

from antiphon_engine.api.request_times import PrefillChunk, RequestTimes


def one_chunk(
    *,
    arrival_ns: int,
    start_ns: int,
    end_ns: int,
    num_reused: int,
    num_computed: int,
    num_steps: int,
) -> RequestTimes:
    """The times of a request that is alone in its steps, the first of which computes its prompt.

    Args:
        arrival_ns: When it came.
        start_ns: When its first step began; 0: it had none.
        end_ns: When that ended.
        num_reused: Tokens of its prompt that were cached.
        num_computed: The others.
        num_steps: Of it in all.
    """
    chunk = PrefillChunk(
        start_ns=start_ns, end_ns=end_ns, step=1, num_steps=1, num_tokens=num_computed, num_rows=1
    )
    return RequestTimes(
        arrival_ns=arrival_ns,
        num_steps=num_steps,
        num_preemptions=0,
        num_rests=0,
        rest_ns=0,
        num_batch_rows=num_steps,
        max_batch_rows=min(num_steps, 1),
        num_device_reused=num_reused,
        num_host_reused=0,
        num_recomputed=0,
        chunks=[chunk] if start_ns else [],
    )

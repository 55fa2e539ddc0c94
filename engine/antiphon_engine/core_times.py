"""Reads what the core has stamped of a request."""

from antiphon_engine import _native
from antiphon_engine.api.request_times import PrefillChunk, RequestTimes, Rest


def read_times(core: _native.EngineCore, handle: int) -> RequestTimes:
    """Returns what happened to a core request up to now or its end.

    To be called before anything is submitted behind that end.
    """
    told = core.times(handle)
    assert told is not None, f"the place of core request {handle} has another"
    counts, chunks, rests = told
    return RequestTimes(
        **counts,
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

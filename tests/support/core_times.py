"""What the core must have stamped of its requests, kept by plain rules and without bounds."""

from dataclasses import dataclass, field

from antiphon_engine import _native
from antiphon_engine.api.request_times import PrefillChunk, RequestTimes, Rest
from antiphon_engine.core_times import read_times
from support.core_steps import PlannedRow, PlannedStep

MAX_CHUNKS = 34
MAX_RESTS = 16


@dataclass(kw_only=True)
class _Kept:
    """All that happened to one request."""

    arrival_ns: int
    batch_rows: list[int] = field(default_factory=list)
    """Of each step that counted."""
    chunks: list[PrefillChunk] = field(default_factory=list)
    rests: list[Rest] = field(default_factory=list)
    rest: Rest | None = None
    num_preemptions: int = 0
    num_reached: int = 0
    num_reused: int = 0
    num_recomputed: int = 0
    has_output: bool = False


class TimesModel:
    """Notes what is planned, committed and ended, and compares the core's stamps with it."""

    def __init__(self, core: _native.EngineCore) -> None:
        self._core = core
        self._kept: dict[int, _Kept] = {}
        self._now_ns = 0
        self._planned_ns: dict[int, int] = {}

    def tell(self, now_ns: int) -> int:
        """Moves the clock that the core is told, and returns the instant to tell."""
        self._now_ns = max(self._now_ns, now_ns)
        return now_ns

    def submit(self, handle: int, arrival_ns: int) -> None:
        self._kept[handle] = _Kept(arrival_ns=arrival_ns)

    def plan(self, step: PlannedStep) -> None:
        self._planned_ns[step.step_id] = self._now_ns
        for row in step.rows:
            kept = self._kept[row.handle]
            kept.num_recomputed += max(0, min(row.end, kept.num_reached) - row.start)
            if row.is_new:
                kept.num_reused += max(0, row.start - kept.num_reached)
                self._end_rest(kept)

    def commit(self, step: PlannedStep, row: PlannedRow) -> None:
        """Notes a row that counts; those of a step in order."""
        kept = self._kept[row.handle]
        kept.batch_rows.append(len(step.rows))
        if row.flags & _native.FLAG_PREFILL and not kept.has_output:
            kept.chunks.append(
                PrefillChunk(
                    start_ns=self._planned_ns[step.step_id],
                    end_ns=self._now_ns,
                    step=step.step_id,
                    num_steps=1,
                    num_tokens=row.end - row.start,
                    num_rows=len(step.rows),
                )
            )
        kept.has_output |= row.samples and row.index not in step.late

    def suspend(self, handle: int, *, num_computed: int, held: bool) -> None:
        """Notes that a request that had had a row has lost its memory."""
        kept = self._kept[handle]
        self._end_rest(kept)
        kept.rest = Rest(start_ns=self._now_ns, end_ns=self._now_ns, held=held)
        kept.num_preemptions += not held
        kept.num_reached = max(kept.num_reached, num_computed)

    def end(self, handle: int) -> None:
        """Compares what is known of a request that has just ended."""
        kept = self._kept.pop(handle)
        self._end_rest(kept)
        self._compare(handle, kept)

    def check(self) -> None:
        """Compares what is known of those that have not ended."""
        for handle, kept in self._kept.items():
            self._compare(handle, kept)

    def _compare(self, handle: int, kept: _Kept) -> None:
        times = read_times(self._core, handle)
        num_host_reused = times.num_host_reused
        assert 0 <= num_host_reused <= kept.num_reused, "more came from the host than was reused"
        assert times == RequestTimes(
            arrival_ns=kept.arrival_ns,
            num_steps=len(kept.batch_rows),
            num_preemptions=kept.num_preemptions,
            num_rests=len(kept.rests),
            rest_ns=sum(rest.end_ns - rest.start_ns for rest in kept.rests),
            num_batch_rows=sum(kept.batch_rows),
            max_batch_rows=max(kept.batch_rows, default=0),
            num_device_reused=kept.num_reused - num_host_reused,
            num_host_reused=num_host_reused,
            num_recomputed=kept.num_recomputed,
            chunks=bounded(kept.chunks),
            rests=kept.rests[:MAX_RESTS],
        )

    def _end_rest(self, kept: _Kept) -> None:
        if kept.rest is not None:
            rest, kept.rest = kept.rest, None
            kept.rests.append(Rest(start_ns=rest.start_ns, end_ns=self._now_ns, held=rest.held))


def bounded(chunks: list[PrefillChunk]) -> list[PrefillChunk]:
    """Returns the first chunks, those between as one, and the last."""
    if len(chunks) <= MAX_CHUNKS:
        return chunks
    between = chunks[MAX_CHUNKS - 2 : -1]
    merged = PrefillChunk(
        start_ns=between[0].start_ns,
        end_ns=between[-1].end_ns,
        step=between[0].step,
        num_steps=len(between),
        num_tokens=sum(chunk.num_tokens for chunk in between),
        num_rows=max(chunk.num_rows for chunk in between),
    )
    return [*chunks[: MAX_CHUNKS - 2], merged, chunks[-1]]

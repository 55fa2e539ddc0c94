"""What an engine told of a request as a whole, and the spans of time that follow from it."""

from dataclasses import dataclass

from antiphon.v1.types_pb2 import PrefillChunk, Rest, Timings

from antiphon_engine.api.handle import RequestNews
from antiphon_engine.api.request_times import RequestTimes
from antiphon_server.times import to_duration


@dataclass(slots=True)
class RequestFacts:
    """What the engine told of a request. Instants are on the monotonic clock."""

    cached_prompt_tokens: int | None = None
    first_step_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    times: RequestTimes | None = None
    """Of output 0, once it has ended, by the engine in which it ended; None where none told."""

    def note(self, news: RequestNews) -> None:
        """Takes in what news add."""
        if news.cached_prompt_tokens is not None:
            self.cached_prompt_tokens = news.cached_prompt_tokens
        self.first_step_ns = self.first_step_ns or news.first_step_ns
        self.first_token_ns = self.first_token_ns or news.first_token_ns
        self.last_token_ns = max(self.last_token_ns, news.last_token_ns)
        for output in news.outputs.values():
            # Outputs share steps, so the longest one tells how many there were.
            self.num_steps = max(self.num_steps, output.num_steps)
            self.num_preemptions += output.num_preemptions
            self.times = self.times or output.times

    def note_tokens(self, news: RequestNews) -> None:
        """Takes in news that have neither a start nor an end."""
        if news.first_token_ns:
            self.first_token_ns = self.first_token_ns or news.first_token_ns
        self.last_token_ns = news.last_token_ns

    def timings(self, received_ns: int) -> Timings:
        """Returns the spans between the instants that are known."""
        first_step, first, last = self.first_step_ns, self.first_token_ns, self.last_token_ns
        timings = Timings(
            queue=to_duration(first_step - received_ns if first_step else 0),
            prefill=to_duration(first - first_step if first else 0),
            decode=to_duration(last - first if first else 0),
            time_to_first_token=to_duration(first - received_ns if first else 0),
            num_steps=self.num_steps,
            num_preemptions=self.num_preemptions,
        )
        if self.times is not None:
            timings.MergeFrom(_details(self.times, received_ns))
        return timings


def _details(times: RequestTimes, received_ns: int) -> Timings:
    """Returns what is told of the first output alone."""
    return Timings(
        preparation=to_duration(times.arrival_ns - received_ns),
        grammar_wait=to_duration(times.grammar_wait_ns) if times.grammar_wait_ns else None,
        prefill_chunks=[
            PrefillChunk(
                start=to_duration(chunk.start_ns - received_ns),
                duration=to_duration(chunk.end_ns - chunk.start_ns),
                num_tokens=chunk.num_tokens,
                batch_size=chunk.num_rows,
                step=chunk.step,
                num_steps=chunk.num_steps,
            )
            for chunk in times.chunks
        ],
        rests=[
            Rest(
                start=to_duration(rest.start_ns - received_ns),
                duration=to_duration(rest.end_ns - rest.start_ns),
                reason=Rest.REASON_HELD if rest.held else Rest.REASON_PREEMPTED,
            )
            for rest in times.rests
        ],
        num_rests=times.num_rests,
        rest=to_duration(times.rest_ns),
        mean_batch_size=times.num_batch_rows / times.num_steps if times.num_steps else 0.0,
        max_batch_size=times.max_batch_rows,
        device_reused_tokens=times.num_device_reused,
        host_reused_tokens=times.num_host_reused,
        recomputed_tokens=times.num_recomputed,
    )

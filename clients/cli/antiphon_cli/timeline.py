"""A turn's timeline, from its stored timings: what it did when, as bars on one scale."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from antiphon.v1 import session_pb2, types_pb2
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from antiphon_cli.figures import counted, rate, seconds, span

_STYLES: Final = {"queue": "yellow", "prefill": "blue", "decode": "green", "rest": "red"}
_MIN_BAR_WIDTH: Final = 16
_NUM_OTHER_COLUMNS: Final = 62
"""What labels, durations and notes take of a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A time in a turn's life. Instants count from its receipt."""

    label: str
    kind: str
    """What it is a part of."""
    start_s: float
    duration_s: float
    note: str = ""


def stretches(timings: types_pb2.Timings) -> Iterator[Stretch]:
    """Yields what a turn did, in order, parts behind what they are parts of."""
    queue_s, prefill_s = seconds(timings.queue), seconds(timings.prefill)
    yield Stretch(label="queue", kind="queue", start_s=0.0, duration_s=queue_s)
    preparation_s = min(seconds(timings.preparation), queue_s)
    if timings.HasField("preparation"):
        yield Stretch(label="  front end", kind="queue", start_s=0.0, duration_s=preparation_s)
        grammar_s = min(seconds(timings.grammar_wait), queue_s - preparation_s)
        if timings.HasField("grammar_wait"):
            yield Stretch(
                label="  grammar",
                kind="queue",
                start_s=preparation_s,
                duration_s=grammar_s,
                note="compiled what holds for the output",
            )
        yield Stretch(
            label="  engine",
            kind="queue",
            start_s=preparation_s + grammar_s,
            duration_s=queue_s - preparation_s - grammar_s,
        )
    yield Stretch(label="prefill", kind="prefill", start_s=queue_s, duration_s=prefill_s)
    num_before = 0
    for chunk in timings.prefill_chunks:
        yield _chunk(chunk, num_before)
        num_before += chunk.num_steps
    yield Stretch(
        label="decode",
        kind="decode",
        start_s=queue_s + prefill_s,
        duration_s=seconds(timings.decode),
    )
    for rest in timings.rests:
        held = rest.reason == types_pb2.Rest.REASON_HELD
        yield Stretch(
            label="  held" if held else "  paused",
            kind="rest",
            start_s=seconds(rest.start),
            duration_s=seconds(rest.duration),
            note="its reader was behind" if held else "made room for others",
        )
    if num_more := timings.num_rests - len(timings.rests):
        yield Stretch(
            label=f"  {counted(num_more, 'rest')} more", kind="rest", start_s=0.0, duration_s=0.0
        )


def _chunk(chunk: types_pb2.PrefillChunk, num_before: int) -> Stretch:
    first = num_before + 1
    one = chunk.num_steps == 1
    return Stretch(
        label=f"  chunk {first}" if one else f"  chunks {first}-{num_before + chunk.num_steps}",
        kind="prefill",
        start_s=seconds(chunk.start),
        duration_s=seconds(chunk.duration),
        note=f"{counted(chunk.num_tokens, 'token')}, batch {'' if one else 'up to '}"
        f"{chunk.batch_size}, step {chunk.step}",
    )


class Timeline:
    """What a terminal shows of a turn."""

    def __init__(self, turn: session_pb2.Turn) -> None:
        self._turn = turn
        self._stretches = list(stretches(turn.timings))
        self._whole_s = max(
            (each.start_s + each.duration_s for each in self._stretches), default=0.0
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in summary(self._turn):
            yield Text(line, overflow="fold")
        if not self._whole_s:
            return
        width = max(_MIN_BAR_WIDTH, options.max_width - _NUM_OTHER_COLUMNS)
        mark = "\N{BOX DRAWINGS HEAVY HORIZONTAL}" if _takes_lines(console) else "#"
        table = Table.grid(padding=(0, 1))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True, width=width)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for each in self._stretches:
            table.add_row(
                Text(each.label),
                Text(span(each.duration_s)),
                Text(self._bar(each, width, mark), style=_STYLES[each.kind]),
                Text(each.note, style="dim"),
            )
        yield Text()
        yield table

    def _bar(self, stretch: Stretch, width: int, mark: str) -> str:
        """Returns its bar, one mark at least where it took any time."""
        if not stretch.duration_s:
            return ""
        scale = width / self._whole_s
        start = min(int(stretch.start_s * scale), width - 1)
        end = round((stretch.start_s + stretch.duration_s) * scale)
        return " " * start + mark * max(1, end - start)


def _takes_lines(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal and console.encoding[:3] == "utf"


def summary(turn: session_pb2.Turn) -> Iterator[str]:
    """Yields what is said of a turn above its timeline, line by line."""
    timings, usage = turn.timings, turn.usage
    yield turn.name
    yield _outcome(turn)
    if not timings.num_steps:
        return
    num_computed = sum(chunk.num_tokens for chunk in timings.prefill_chunks)
    reused = f"{usage.cached_prompt_tokens:,} reused"
    if timings.host_reused_tokens:
        reused += f" ({timings.host_reused_tokens:,} of them from the host's memory)"
    prompt = f"{counted(usage.prompt_tokens, 'prompt token')}: {reused}, {num_computed:,} computed"
    yield prompt + _speed(num_computed, seconds(timings.prefill))
    output = (
        f"{counted(usage.output_tokens, 'output token')} in {counted(timings.num_steps, 'step')}"
    )
    yield output + _speed(usage.output_tokens - 1, seconds(timings.decode))
    if timings.max_batch_size:
        yield f"batch: {timings.mean_batch_size:.1f} on average, {timings.max_batch_size} at most"
    if timings.num_rests:
        yield (
            f"{counted(timings.num_rests, 'rest')} of {span(seconds(timings.rest))} together,"
            f" {counted(timings.recomputed_tokens, 'token')} computed again"
        )
    first_s = seconds(timings.time_to_first_token)
    last_s = seconds(timings.queue) + seconds(timings.prefill) + seconds(timings.decode)
    yield f"first token after {span(first_s)}, last after {span(last_s)}"


def _outcome(turn: session_pb2.Turn) -> str:
    state = session_pb2.Turn.State.Name(turn.state).removeprefix("STATE_").lower()
    if turn.HasField("failure"):
        return f"{state}: {turn.failure.reason}"
    if turn.state == session_pb2.Turn.STATE_COMPLETED and not turn.output.finish_reason:
        return "appended: what was said was put in, and no answer asked for"
    if turn.state == session_pb2.Turn.STATE_COMPLETED:
        reason = types_pb2.FinishReason.Name(turn.output.finish_reason)
        return f"{state}: {reason.removeprefix('FINISH_REASON_')}"
    return state


def _speed(num_tokens: int, duration_s: float) -> str:
    return f", {rate(num_tokens / duration_s)} a second" if num_tokens > 0 and duration_s else ""

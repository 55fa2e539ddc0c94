"""What a terminal shows of an engine: its counters, and what became of them since the last look."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from antiphon.v1 import admin_pb2
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from antiphon_cli.figures import counted, rate, seconds, share, span

_MAX_BAR_WIDTH: Final = 48
_NUM_OTHER_COLUMNS: Final = 54
"""What labels and figures take of a line with a bar."""
_CLEAR: Final = (
    "\N{FULL BLOCK}",
    "\N{MEDIUM SHADE}",
    "\N{MIDDLE DOT}",
)
_PLAIN: Final = ("#", "=", ".")
"""Used, cached and free."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What two looks at an engine tell of the time between them, each a second."""

    prefilled: float
    reused: float
    generated: float
    steps: float


def rates(before: admin_pb2.EngineStats | None, now: admin_pb2.EngineStats) -> Rates | None:
    """Returns what became of the counters; None where there is no look before, of this engine."""
    if before is None or before.start_time != now.start_time or before.model != now.model:
        return None
    passed_s = _instant_s(now.sample_time) - _instant_s(before.sample_time)
    if passed_s <= 0:
        return None
    return Rates(
        prefilled=(now.num_prefilled_tokens_total - before.num_prefilled_tokens_total) / passed_s,
        reused=(now.num_reused_tokens_total - before.num_reused_tokens_total) / passed_s,
        generated=(now.num_generated_tokens_total - before.num_generated_tokens_total) / passed_s,
        steps=(now.step - before.step) / passed_s,
    )


class EngineView:
    """The latest look at one engine, and what is wrong with looking."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._before: admin_pb2.EngineStats | None = None
        self._now: admin_pb2.EngineStats | None = None
        self._trouble = ""

    def take(self, stats: admin_pb2.EngineStats) -> None:
        """Takes in another look."""
        self._before, self._now = self._now, stats
        self._trouble = ""

    def lose(self, trouble: str) -> bool:
        """Notes that there is none for now, what was seen last stays; returns whether it is new."""
        is_new = trouble != self._trouble
        self._trouble = trouble
        return is_new

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._trouble:
            yield Text(f"{self._trouble}; trying again", style="bold red")
        if self._now is None:
            return
        width = max(8, min(_MAX_BAR_WIDTH, options.max_width - _NUM_OTHER_COLUMNS))
        takes_blocks = console.encoding.startswith("utf") and console.is_terminal
        bars = _Bars(width, _CLEAR if takes_blocks else _PLAIN)
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, style="bold")
        table.add_column(overflow="fold")
        for label, told in _rows(self._now, rates(self._before, self._now), bars):
            table.add_row(label, told)
        yield Text(_title(self._now, self._target), style="bold")
        yield table


@dataclass(frozen=True, slots=True)
class _Bars:
    """Bars that show parts of a whole."""

    width: int
    marks: tuple[str, str, str]

    def bar(self, whole: int, *parts: int) -> Text:
        """Returns a bar of parts from the left, the rest of `whole` marked as free."""
        bar, num_marks, sum_before = Text(), 0, 0
        for part, mark, style in zip(parts, self.marks, ("green", "cyan"), strict=False):
            sum_before += part
            end = round(self.width * sum_before / whole)
            bar.append(mark * (end - num_marks), style=style)
            num_marks = end
        return bar.append(self.marks[-1] * (self.width - num_marks), style="dim")


def _title(now: admin_pb2.EngineStats, target: str) -> str:
    age_s = _instant_s(now.sample_time) - _instant_s(now.start_time)
    return f"{now.model} at {target}, up {_age(age_s)}, step {now.step:,}"


def _rows(
    now: admin_pb2.EngineStats, change: Rates | None, bars: _Bars
) -> Iterator[tuple[str, Text]]:
    yield (
        "requests",
        Text(
            f"running {now.num_running:,}   waiting {now.num_waiting:,}"
            f"   paused {now.num_paused:,}   held {now.num_held:,}"
            f"   sessions {now.num_sessions:,}"
        ),
    )
    if now.num_blocks:
        blocks = bars.bar(now.num_blocks, now.num_blocks_used, now.num_blocks_cached)
        blocks.append(
            f"  used {share(now.num_blocks_used, now.num_blocks)}"
            f"   cached {share(now.num_blocks_cached, now.num_blocks)}"
            f"   free {share(now.num_blocks_free, now.num_blocks)}"
        )
        yield "KV cache", blocks
    if now.num_host_blocks:
        host = bars.bar(now.num_host_blocks, now.num_host_blocks_used)
        host.append(f"  used {share(now.num_host_blocks_used, now.num_host_blocks)}")
        yield "KV on host", host
    yield (
        "computed",
        Text(_pace(now.num_prefilled_tokens_total, change.prefilled if change else None)),
    )
    yield "reused", Text(_reuse(now, change))
    yield (
        "generated",
        Text(_pace(now.num_generated_tokens_total, change.generated if change else None)),
    )
    yield (
        "steps",
        Text(
            (f"{rate(change.steps)} a second, " if change else "")
            + f"the last {span(seconds(now.step_time))},"
            f" {span(seconds(now.schedule_time))} of it for planning"
        ),
    )
    yield from _latencies(now.latencies)
    yield (
        "since start",
        Text(
            f"{counted(now.num_preemptions_total, 'pause')},"
            f" {counted(now.num_evictions_total, 'eviction')},"
            f" {counted(now.num_offloads_total, 'offload')},"
            f" {counted(now.num_onloads_total, 'onload')}"
        ),
    )
    if now.num_finished_total:
        ended = sorted(now.num_finished_total.items(), key=lambda pair: (-pair[1], pair[0]))
        yield "ended", Text("   ".join(f"{reason} {number:,}" for reason, number in ended))


def _pace(total: int, per_second: float | None) -> str:
    """Returns how many tokens a second, or in all where that isn't known."""
    if per_second is None:
        return counted(total, "token")
    return f"{rate(per_second)} tokens a second"


def _reuse(now: admin_pb2.EngineStats, change: Rates | None) -> str:
    total = now.num_reused_tokens_total
    since_start = f"{share(total, total + now.num_prefilled_tokens_total)} of all prompts' tokens"
    if change is None:
        return f"{_pace(total, None)}, {since_start}"
    lately = share(change.reused, change.reused + change.prefilled)
    return f"{_pace(total, change.reused)}, {lately} of the prompts'; {since_start}"


def _latencies(latencies: admin_pb2.RecentLatencies) -> Iterator[tuple[str, Text]]:
    whose = f"({counted(latencies.num_requests, 'request')} of the last minute)"
    if not latencies.num_requests:
        yield "first token", Text(f"- {whose}")
        return
    yield "first token", Text(f"{_quantiles(latencies.time_to_first_token)}   {whose}")
    if latencies.HasField("time_per_output_token"):
        yield "each token", Text(_quantiles(latencies.time_per_output_token))


def _quantiles(quantiles: admin_pb2.Quantiles) -> str:
    return f"p50 {span(seconds(quantiles.p50))}   p99 {span(seconds(quantiles.p99))}"


def _age(age_s: float) -> str:
    minutes, rest_s = divmod(max(0, int(age_s)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest_s:02} s" if minutes else f"{rest_s} s"


def _instant_s(stamp: Timestamp) -> float:
    return stamp.seconds + stamp.nanos / 1e9

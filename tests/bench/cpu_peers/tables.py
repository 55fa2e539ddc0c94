"""The table that people read."""

from collections.abc import Iterator, Mapping, Sequence

from bench.cpu_peers.catalog import Engine
from bench.cpu_peers.measuring import Figures

COLUMNS = {
    "prefill512_tps": ("prefill 512, tok/s", "{:.0f}"),
    "decode1_tps": ("decode 1, tok/s", "{:.1f}"),
    "decode4_tps": ("decode 4, tok/s", "{:.1f}"),
    "decode16_tps": ("decode 16, tok/s", "{:.1f}"),
    "turn2_ttft_s": ("turn 2, s", "{:.3f}"),
    "peak_pss_mb": ("peak PSS, MB", "{:.0f}"),
    "startup_s": ("start, s", "{:.1f}"),
}


def speed_table(engines: Sequence[Engine], figures: Mapping[str, Figures]) -> Iterator[str]:
    """Yields the lines of a Markdown table."""
    titles = [title for title, _ in COLUMNS.values()]
    yield f"| engine | how | {' | '.join(titles)} |"
    yield "|---" * (len(titles) + 2) + "|"
    for engine in engines:
        seen = figures[engine.name]
        if seen.failure:
            yield f"| {engine.name} | {engine.kind} | failed: {seen.failure} |" + " |" * 6
            continue
        medians = seen.medians()
        cells = [
            shape.format(medians[name]) if name in medians else ""
            for name, (_, shape) in COLUMNS.items()
        ]
        yield f"| {engine.name} | {engine.kind} | {' | '.join(cells)} |"

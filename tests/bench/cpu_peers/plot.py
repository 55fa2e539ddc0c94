"""Draws the figures as bars, one panel for each, into an SVG file."""

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from bench.cpu_peers.tables import COLUMNS

_PANEL_WIDTH = 460
_LABEL_WIDTH = 170
_BAR_HEIGHT = 15
_GAP = 4
_TITLE_HEIGHT = 26
_NUM_COLUMNS = 2
_OWN, _PEER = "#1f6feb", "#8b949e"


def write_plot(path: Path, figures: Mapping[str, Mapping[str, Any]]) -> None:
    """Draws engines that have figures. Its text is escaped, its size fits what there is."""
    shown = {name: each for name, each in figures.items() if "failure" not in each}
    panel_height = _TITLE_HEIGHT + len(shown) * (_BAR_HEIGHT + _GAP) + 14
    num_rows = -(-len(COLUMNS) // _NUM_COLUMNS)
    width, height = _NUM_COLUMNS * _PANEL_WIDTH, num_rows * panel_height
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for index, (name, (title, shape)) in enumerate(COLUMNS.items()):
        x = index % _NUM_COLUMNS * _PANEL_WIDTH
        y = index // _NUM_COLUMNS * panel_height
        values = {engine: float(each[name]) for engine, each in shown.items() if name in each}
        lines.append(f'<g transform="translate({x},{y})">')
        lines.extend(_panel(title, shape, values))
        lines.append("</g>")
    path.write_text("\n".join([*lines, "</svg>"]) + "\n", encoding="utf-8")


def _panel(title: str, shape: str, values: Mapping[str, float]) -> Iterator[str]:
    yield f'<text x="8" y="17" font-size="13" font-weight="bold">{escape(title)}</text>'
    longest = max(values.values(), default=0.0) or 1.0
    for row, (engine, value) in enumerate(values.items()):
        y = _TITLE_HEIGHT + row * (_BAR_HEIGHT + _GAP)
        width = value / longest * (_PANEL_WIDTH - _LABEL_WIDTH - 60)
        color = _OWN if engine.startswith("antiphon") else _PEER
        text_y = y + _BAR_HEIGHT - 4
        yield f'<text x="{_LABEL_WIDTH - 6}" y="{text_y}" text-anchor="end">{escape(engine)}</text>'
        yield (
            f'<rect x="{_LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{_BAR_HEIGHT}" '
            f'fill="{color}"/>'
        )
        yield f'<text x="{_LABEL_WIDTH + width + 4:.1f}" y="{text_y}">{shape.format(value)}</text>'

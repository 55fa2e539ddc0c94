"""Figures as a table for people."""

from collections.abc import Mapping, Sequence

_LEFT_OUT = {"first_token_ms_p99_by_turn"}
"""In the JSON alone."""


def table_of(name: str, rows: Sequence[Mapping[str, object]]) -> str:
    """Returns rows of the same keys as a table with a title."""
    keys = [key for key in rows[0] if key not in _LEFT_OUT]
    cells = [[key.replace("_", " ") for key in keys]]
    cells += [[_text(row.get(key)) for key in keys] for row in rows]
    # A row of many figures is read more easily from top to bottom.
    columns = list(zip(*cells, strict=True))
    widths = [max(len(line[i]) for line in columns) for i in range(len(cells))]
    lines = [
        "  ".join(
            [line[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        )
        for line in columns
    ]
    return "\n".join([name, *(f"  {line}" for line in lines)])


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " / ".join(_text(part) for part in value)
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 10 else f"{value:,.1f}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

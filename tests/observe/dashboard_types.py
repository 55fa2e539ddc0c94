"""Checks the dashboard against the types that Grafana publishes of its dashboards and panels.

Each part of the file is written as a constant of its type, and the TypeScript compiler says what
is missing, unknown or of another kind. It prints that, and ends with the compiler's status.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

DASHBOARD: Final = Path(__file__).parents[2] / "deploy" / "otel" / "dashboard.json"
_RAW: Final = "./node_modules/@grafana/schema/dist/types/raw"
_HEAD: Final = f"""\
import type * as D from "{_RAW}/dashboard/x/types.gen";
import type * as stat from "{_RAW}/composable/stat/panelcfg/x/types.gen";
import type * as timeseries from "{_RAW}/composable/timeseries/panelcfg/x/types.gen";
// Enumerations stand as their values in a file.
type Plain<V> = V extends string ? `${{V}}` : V extends number ? V
  : V extends (infer E)[] ? Plain<E>[] : V extends object ? {{[K in keyof V]: Plain<V[K]>}} : V;
// Of a panel's own options, those that are left out have defaults.
type Some<V> = V extends (infer E)[] ? Some<E>[]
  : V extends object ? {{[K in keyof V]?: Some<V[K]>}} : V;
"""
_BESIDE_THE_TYPES: Final = ("definition", "expr", "titleFormat", "textFormat")
_COMPILE: Final = ("--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext")


def constants(dashboard: dict[str, Any]) -> Iterator[str]:
    """Yields the lines that the compiler reads, for a dashboard that this takes apart."""
    yield _HEAD
    panels = dashboard.pop("panels")
    # What Grafana's Prometheus writes and reads besides; the types leave it to each source of data.
    for described in (*dashboard["templating"]["list"], *dashboard["annotations"]["list"]):
        for key in _BESIDE_THE_TYPES:
            described.pop(key, None)
    yield _constant("whole", "Plain<D.Dashboard>", dashboard)
    for panel in panels:
        kind, number = panel["type"], panel["id"]
        own = panel.pop("options", None)
        custom = panel.get("fieldConfig", {}).get("defaults", {}).pop("custom", None)
        whole = "RowPanel" if kind == "row" else "Panel"
        yield _constant(f"panel_{number}", f"Plain<D.{whole}>", panel)
        if own is not None:
            yield _constant(f"options_{number}", f"Some<Plain<{kind}.Options>>", own)
        if custom is not None:
            yield _constant(f"custom_{number}", f"Some<Plain<{kind}.FieldConfig>>", custom)


def _constant(name: str, kind: str, value: Mapping[str, Any]) -> str:
    return f"const {name}: {kind} = {json.dumps(value, indent=1)};"


def main() -> int:
    """Takes the folder where Grafana's types and the compiler are installed."""
    folder = Path(sys.argv[1])
    text = "\n".join(constants(json.loads(DASHBOARD.read_text())))
    (folder / "dashboard.ts").write_text(text)
    compiler = folder / "node_modules" / ".bin" / "tsc"
    command = [str(compiler.absolute()), *_COMPILE, "dashboard.ts"]
    return subprocess.run(command, cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

"""Takes pictures: of a trace in the browser, and of `antiphon top` in a terminal."""

import asyncio
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from observe.chat import single_requests
from support.terminal import Terminal

_COLUMNS, _LINES = 104, 14
_TRACE_PIXELS = (1440, 900)
_TOP_PIXELS = (1000, 232)
_HOME = "\x1b[H"
"""What begins each of the frames that a live view draws."""
_NUM_FRAMES = 6
_PAGE = """\
<!doctype html><meta charset="utf-8">
<style>
body { margin: 16px; background: #1b1e24; color: #d7dae0 }
pre { margin: 0; font: 15px monospace }
</style>
<pre>CODE</pre>
"""


def take_pictures(folder: Path, trace_url: str, target: str, admin_target: str) -> None:
    """Writes `trace.png` and `top.png`."""
    take_page(trace_url, folder / "trace.png", _TRACE_PIXELS)
    with ThreadPoolExecutor(max_workers=1) as pool:
        # Something is to be seen.
        load = pool.submit(asyncio.run, single_requests(target, max_tokens=128))
        frame = last_frame(admin_target)
        load.result()
    with tempfile.NamedTemporaryFile("w", suffix=".html") as page:
        page.write(as_page(frame))
        page.flush()
        take_page(f"file://{page.name}", folder / "top.png", _TOP_PIXELS)


def last_frame(admin_target: str) -> str:
    """Runs `antiphon top` at a terminal; returns what it shows behind some looks."""
    environ = {
        "TERM": "xterm-256color",
        "COLUMNS": str(_COLUMNS),
        "LINES": str(_LINES),
        "PYTHONIOENCODING": "utf-8",
    }
    with Terminal("antiphon_cli.main", ["top", "--target", admin_target], environ=environ) as top:
        while top.raw.count(_HOME) <= _NUM_FRAMES:
            top.wait_for_more()
        # The last one may not be whole.
        return top.raw.split(_HOME)[-2]


def as_page(frame: str) -> str:
    """Returns a page that shows a terminal's lines in their colours."""
    console = Console(width=_COLUMNS, record=True, file=StringIO())
    console.print(Text.from_ansi(frame.replace("\r", "")), soft_wrap=True)
    code = console.export_html(inline_styles=True, code_format="{code}")
    return _PAGE.replace("CODE", code)


def take_page(url: str, path: Path, pixels: Sequence[int]) -> None:
    """Takes a picture of a page by Debian's chromium."""
    with tempfile.TemporaryDirectory() as profile:
        words = [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
            *("--no-first-run", "--disable-background-networking", "--disable-sync"),
            *("--disable-component-update", "--hide-scrollbars"),
            f"--user-data-dir={profile}",
            f"--window-size={pixels[0]},{pixels[1]}",
            *("--virtual-time-budget=20000", f"--screenshot={path}", url),
        ]
        # It complains of what a desktop would have, whatever comes of it.
        subprocess.run(words, check=True, timeout=300, capture_output=True)

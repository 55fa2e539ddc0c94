"""`antiphon top`: what an engine does, live."""

import argparse
import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing
from typing import Final

from antiphon.v1 import admin_pb2
from google.protobuf import json_format
from rich.console import Console
from rich.live import Live

from antiphon_cli.connection_flags import add_connection, options_of
from antiphon_cli.engine_looks import looks
from antiphon_cli.engine_view import EngineView
from antiphon_cli.failures import explain, report
from antiphon_cli.key_reading import reading_keys
from antiphon_cli.outcome import WRONG_USE, complain, complain_of
from antiphon_cli.output_console import OutputConsole
from antiphon_client import AdminClient, ClientOptions, ServerError

DESCRIPTION = """\
Shows what an engine does, live: who runs and waits, how full the KV cache is, how much is reused,
tokens a second, and how long requests take. It asks the port for administration. Where the server
is away, it waits for it.

q leaves, as does Ctrl-C. Where there is no terminal to draw on, looks are written one by one."""
EXAMPLES = """\
examples:
  antiphon top
  antiphon top --once
  antiphon top --json --interval 10 >> engine.jsonl
  antiphon top --target 10.0.0.5:50052 --ca ca.pem --token-file operators.token
"""
_MIN_INTERVAL_S: Final = 0.1
_MAX_INTERVAL_S: Final = 3600.0
_PORT: Final = "for administration"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument("--model", metavar="NAME", default="", help="models/NAME, of several")
    parser.add_argument(
        "--interval",
        type=float,
        metavar="SECONDS",
        default=1.0,
        help="between looks (default %(default)s)",
    )
    parser.add_argument("--once", action="store_true", help="look once, and write it down")
    parser.add_argument(
        "--json", action="store_true", help="for programs: the counters, one JSON object a line"
    )
    add_connection(parser, target="127.0.0.1:50052")


def run(arguments: argparse.Namespace) -> int:
    """Watches until the person leaves, and returns the exit status."""
    if not _MIN_INTERVAL_S <= arguments.interval <= _MAX_INTERVAL_S:
        complain(
            f"--interval is {arguments.interval:g} s; it must be from {_MIN_INTERVAL_S:g}"
            f" to {_MAX_INTERVAL_S:g} s"
        )
        return WRONG_USE
    try:
        options = options_of(arguments)
    except (OSError, ValueError) as error:
        complain_of(error)
        return WRONG_USE
    try:
        asyncio.run(_watch(arguments, options))
    except ValueError as error:
        complain_of(error)
        return WRONG_USE
    except ServerError as error:
        return report(error, arguments.target, port=_PORT)
    return 0


async def _watch(arguments: argparse.Namespace, options: ClientOptions) -> None:
    console = OutputConsole()
    is_screen = console.is_terminal and not console.is_dumb_terminal
    async with AdminClient(arguments.target, options) as client:
        if is_screen and not (arguments.once or arguments.json):
            await _draw(client, arguments, console)
        else:
            await _write(client, arguments, console)


async def _draw(client: AdminClient, arguments: argparse.Namespace, console: Console) -> None:
    """Keeps the screen up to date until a key or a signal ends it."""
    view = EngineView(arguments.target)
    live = Live(view, console=console, screen=True, auto_refresh=False)

    def show_loss(error: ServerError) -> None:
        trouble = explain(error, arguments.target, port=_PORT)
        is_new = view.lose(trouble)
        if live.is_started:
            live.refresh()
        elif is_new:
            complain(f"{trouble}; trying again")

    async def follow() -> None:
        async for stats in stream:
            view.take(stats)
            live.refresh()

    stream = _looks(client, arguments, on_loss=show_loss)
    async with aclosing(stream):
        # What can't be reached at all is told below, not on a screen that then goes away.
        view.take(await anext(stream))
        with live:
            await _until_left(follow(), redraw=live.refresh)


async def _until_left(work: Coroutine[None, None, None], *, redraw: Callable[[], None]) -> None:
    """Does `work` until somebody wants to leave; redraws where the window changes its size."""
    working = asyncio.ensure_future(work)

    def take(key: str) -> None:
        if key in "qQ":
            working.cancel()

    with (
        _on_signal(signal.SIGWINCH, redraw),
        _on_signal(signal.SIGTERM, working.cancel),
        reading_keys(take),
    ):
        try:
            await asyncio.wait({working})
        finally:
            working.cancel()
            await asyncio.wait({working})
        if not working.cancelled():
            working.result()


async def _write(client: AdminClient, arguments: argparse.Namespace, console: Console) -> None:
    """Writes each look below the last."""
    view, num_looks = EngineView(arguments.target), 0

    def tell_loss(error: ServerError) -> None:
        trouble = explain(error, arguments.target, port=_PORT)
        if view.lose(trouble):
            complain(f"{trouble}; trying again")

    async with aclosing(_looks(client, arguments, on_loss=tell_loss)) as stream:
        async for stats in stream:
            view.take(stats)
            num_looks += 1
            # It takes two looks to tell what happens a second.
            is_enough = arguments.json or num_looks > 1
            if arguments.json:
                print(json.dumps(_plain(stats)), flush=True)
            elif is_enough or not arguments.once:
                console.print(view)
            if arguments.once and is_enough:
                return


def _looks(
    client: AdminClient, arguments: argparse.Namespace, *, on_loss: Callable[[ServerError], None]
) -> AsyncGenerator[admin_pb2.EngineStats, None]:
    return looks(client, model=arguments.model, interval_s=arguments.interval, on_loss=on_loss)


@contextlib.contextmanager
def _on_signal(number: signal.Signals, act: Callable[[], object]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(number, act)
    try:
        yield
    finally:
        loop.remove_signal_handler(number)


def _plain(stats: admin_pb2.EngineStats) -> object:
    return json_format.MessageToDict(
        stats, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )

"""`antiphon serve`: runs a server."""

import argparse
import os
import textwrap
from collections.abc import Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import Final

from antiphon_cli.model_flags import add_model_flags, model_sets, sets_of
from antiphon_cli.outcome import WRONG_USE, complain
from antiphon_cli.standard_streams import let_go_of_broken

DESCRIPTION = """\
Serves a model until it is told to stop. Prints one line once it takes calls.

Every flag is a setting: --set SECTION.KEY=VALUE reaches all of them, --config reads them from a
TOML file, and ANTIPHON_SECTION__KEY from the environment. Flags win over the environment, the
environment over the file. `antiphon serve --check-config` prints every setting as it would hold,
and --explain what it means."""
EXAMPLES = """\
examples:
  antiphon serve
  antiphon serve --model Qwen/Qwen2.5-Coder-0.5B-Instruct
  antiphon serve --model ./my-checkpoint --dtype float32
  antiphon serve --listen unix:/run/antiphon.sock --store /var/lib/antiphon/sessions.db
  antiphon serve --config antiphon.toml --set engine.kv_cache_bytes=2GiB
  antiphon serve --config antiphon.toml --check-config
  antiphon serve --explain kv_cache
"""

_WIDTH: Final = 100
"""Columns of what --explain says."""

_SETTING_OF: Final = {
    "model": "model.source",
    "listen": "server.listen",
    "admin_listen": "server.admin_listen",
    "store": "store.path",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="a checkpoint directory, FILE.gguf, a hub id, or demo, the default model",
    )
    parser.add_argument(
        "--listen", metavar="ADDRESS", help="HOST:PORT or unix:PATH (default 127.0.0.1:50051)"
    )
    parser.add_argument(
        "--admin-listen",
        metavar="ADDRESS",
        help="where those who run the server connect (default 127.0.0.1:50052)",
    )
    parser.add_argument(
        "--store",
        metavar="PATH",
        help="the SQLite file of the sessions (default: in your state folder)",
    )
    add_model_flags(parser)
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="listen beyond this machine without encryption or without asking for credentials",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="any setting; may be given again",
    )
    parser.add_argument(
        "--check-config",
        action="store_true",
        help="check the settings (no model is read), print them as they would hold, and stop",
    )
    parser.add_argument(
        "--explain",
        nargs="?",
        const="",
        metavar="NAME",
        help="say what each setting with NAME in its name means, or each of all, and stop",
    )


def run(arguments: argparse.Namespace, *, engine_command: Sequence[str] | None = None) -> int:
    """Serves, and returns the exit status.

    Args:
        arguments: The flags.
        engine_command: Runs the engine process; None: this Python's engine.
    """
    missing = _missing_library()
    if missing:
        complain(
            f"serving needs libraries that are not installed ({missing}); "
            "install them with `pip install 'antiphon[serve]'`"
        )
        return WRONG_USE
    from antiphon_engine.api.errors import StartupError
    from antiphon_server import settings

    try:
        config = settings.load_config(_sets(arguments), arguments.config, os.environ)
    except StartupError as error:
        complain(str(error))
        return WRONG_USE
    if arguments.check_config:
        for key, value in settings.describe(config).items():
            print(f"{key} = {value}")
        return 0
    if arguments.explain is not None:
        return _explain(arguments.explain, settings.describe(config))
    from antiphon_server import serve
    from antiphon_server.service_notices import ServiceNotices

    notices = ServiceNotices.from_environment(os.environ)
    status = serve.run(config, engine_command=engine_command, notices=notices)
    # What was said on the way is no part of the work: where nobody took it, that is no failure.
    let_go_of_broken()
    return status


def _explain(name: str, values: Mapping[str, str]) -> int:
    """Prints the settings with that in their names and what they mean; returns the status."""
    from antiphon_server.setting_meanings import meanings
    from antiphon_server.settings import nearest

    found = {key: meaning for key, meaning in meanings().items() if name in key}
    if not found:
        complain(f"no setting has {name!r} in its name{nearest(name, values)}")
        return WRONG_USE
    for key, meaning in found.items():
        print(f"{key} = {values[key]}")
        print(textwrap.fill(meaning, _WIDTH, initial_indent="    ", subsequent_indent="    "))
    return 0


def _sets(arguments: argparse.Namespace) -> list[str]:
    """Returns the flags as `section.key=value`, then those of --set."""
    sets = [*sets_of(arguments, _SETTING_OF), *model_sets(arguments)]
    if arguments.insecure:
        sets.append("server.insecure=true")
    return sets + list(arguments.set)


def _missing_library() -> str:
    """Returns the first library that serving needs and that is absent; empty: none is."""
    needed = ("torch", "tokenizers", "jinja2", "structlog", "msgspec", "safetensors")
    return next((name for name in needed if util.find_spec(name) is None), "")

"""Reads the settings, each key checked.

Defaults < OTEL_ variables < TOML file < environment < command line.
"""

import dataclasses
import difflib
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, get_type_hints

from antiphon_engine.api.config import CUDA_DEFAULTS
from antiphon_engine.api.errors import StartupError
from antiphon_server.config import Config
from antiphon_server.settings_rules import Value, check_together, check_value
from antiphon_server.telemetry.otel_environment import check_endpoints, from_otel_environment
from antiphon_server.transport import check_address, check_addresses
from antiphon_server.user_folders import UserFolders, home_of_user

ENVIRONMENT_PREFIX: Final = "ANTIPHON_"

_UNITS: Final = {
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
}
_MAX_DIGITS: Final = 20
"""More than any setting has, and few enough for every kind of number."""
_INTEGER = re.compile(rf"[+-]?\d{{1,{_MAX_DIGITS}}}")
_SIZE = re.compile(rf"(\d{{1,{_MAX_DIGITS}}}(?:\.\d+)?)\s*([KMG]i?B)", re.IGNORECASE)
_SWITCH: Final = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


def load_config(
    argv_sets: Sequence[str],
    toml_path: Path | None,
    environ: Mapping[str, str],
    *,
    home_of_user: Callable[[], str] = home_of_user,
) -> Config:
    """Returns the settings in force.

    Args:
        argv_sets: `section.key=value` each, as `--set` takes them; later ones win.
        toml_path: The configuration file; None: none.
        environ: The environment, of which `ANTIPHON_SECTION__KEY`, the user's folders and the
            standard OTEL_ variables are read.
        home_of_user: Returns the home folder where HOME doesn't tell it; empty: there is none.

    Raises:
        StartupError: an unknown key or a bad value; names its source, the key, the value and
            what is allowed or was probably meant. Or settings that don't go together.
    """
    values: dict[str, Value] = {}
    for source, key, value in (
        *from_otel_environment(environ),
        *_from_file(toml_path),
        *_from_environment(environ),
        *_from_command_line(argv_sets),
    ):
        kinds = _kinds()
        if key not in kinds:
            raise StartupError(f"{source}: there is no setting {key!r}{nearest(key, kinds)}")
        values[key] = _parse(key, value, kinds[key], source=source)
        check_value(key, values[key], source=source)
    folders = UserFolders(environ, environ.get("HOME", "") or home_of_user())
    config = _with_user_folders(_build({**_of_device(values), **values}), folders)
    check_together(config.engine)
    check_addresses(config.server)
    check_endpoints(config.telemetry)
    if config.telemetry.prometheus_listen:
        listen = config.telemetry.prometheus_listen
        check_address(listen, "telemetry.prometheus_listen", config.server)
    return config


def setting_keys() -> dict[str, str]:
    """Returns the key of every setting, `section.name`, with its type's name, in order."""
    return {key: kind.__name__ for key, kind in _kinds().items()}


def describe(config: Config) -> dict[str, str]:
    """Returns the settings in force by key, each value as a TOML file would spell it."""
    return {key: _spell(value) for key, value in in_force(config).items()}


def in_force(config: Config) -> dict[str, Value]:
    """Returns the value of every setting by its key."""
    return {
        f"{section.name}.{setting.name}": getattr(getattr(config, section.name), setting.name)
        for section in dataclasses.fields(config)
        for setting in dataclasses.fields(getattr(config, section.name))
    }


def changed(config: Config) -> dict[str, Value]:
    """Returns the settings in force that are not as the release has them, by key."""
    usual = in_force(_build(_of_device(in_force(config))))
    return {key: value for key, value in in_force(config).items() if value != usual[key]}


def nearest(name: str, known: Mapping[str, object] | Sequence[str]) -> str:
    """Returns a hint at the known name that was probably meant, or at where to find them."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    if not close:  # A right name in a wrong section, or without one.
        tails = {key.rpartition(".")[2]: key for key in known}
        close = difflib.get_close_matches(name.rpartition(".")[2], list(tails), n=1, cutoff=0.6)
        close = [tails[tail] for tail in close]
    return f"; did you mean {close[0]}?" if close else ""


@cache  # Working out the types takes milliseconds, and each setting that is given asks for one.
def _kinds() -> Mapping[str, type]:
    """Returns the type of every setting by its key."""
    return {
        f"{section}.{name}": kind
        for section, section_type in get_type_hints(Config).items()
        for name, kind in get_type_hints(section_type).items()
    }


def _from_file(path: Path | None) -> Iterator[tuple[str, str, object]]:
    if path is None:
        return
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartupError(f"{path}: can't be read: {error.strerror}") from error
    except RecursionError as error:
        raise StartupError(f"{path}: is nested too deeply") from error
    except ValueError as error:  # Also for text that is not UTF-8, and for endless numbers.
        raise StartupError(f"{path}: is not TOML: {error}") from error
    sections = sorted({key.partition(".")[0] for key in _kinds()})
    for section, entries in tree.items():
        if section not in sections and not isinstance(entries, dict):
            raise StartupError(
                f"{path}: there is no setting {section!r}{nearest(section, _kinds())}; settings "
                "stand in sections, such as [engine]"
            )
        if section not in sections:
            raise StartupError(
                f"{path}: there is no section [{section}]{nearest(section, sections)}"
            )
        if not isinstance(entries, dict):
            raise StartupError(f"{path}: {section} is a section; write [{section}]")
        for name, value in entries.items():
            yield str(path), f"{section}.{name}", value


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str, object]]:
    known = {ENVIRONMENT_PREFIX + key.replace(".", "__").upper(): key for key in _kinds()}
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if variable not in known:
            raise StartupError(
                f"environment: there is no setting {variable}{nearest(variable, known)}"
            )
        yield variable, known[variable], environ[variable]


def _from_command_line(argv_sets: Sequence[str]) -> Iterator[tuple[str, str, object]]:
    for text in argv_sets:
        key, equals, value = text.partition("=")
        if not equals:
            raise StartupError(f"command line: {text!r} is not of the form section.key=value")
        yield "command line", key.strip(), value


def _parse(key: str, value: object, kind: type, *, source: str) -> Value:
    """Turns a TOML value, or the text of a variable or flag, into the setting's type."""
    parsed: Value | None
    if kind is bool:
        word = value.strip().lower() if isinstance(value, str) else ""
        parsed = value if isinstance(value, bool) else _SWITCH.get(word)
    elif kind is str:
        parsed = value if isinstance(value, str) else None
    elif isinstance(value, bool):
        parsed = None
    elif kind is int:
        parsed = value if isinstance(value, int) else _parse_integer(key, value)
    else:
        parsed = _parse_number(value)
    if parsed is None:
        expected = {bool: "true or false", str: "text", int: "a whole number"}.get(kind, "a number")
        if kind is int and key.endswith("_bytes"):
            expected = "a size such as 16777216 or 16MiB"
        raise StartupError(f"{source}: {key} is {value!r:.100}; it must be {expected}")
    return parsed


def _parse_integer(key: str, value: object) -> int | None:
    if not isinstance(value, str):
        return None
    text = value.strip().replace("_", "")
    if _INTEGER.fullmatch(text):
        return int(text)
    size = _SIZE.fullmatch(text) if key.endswith("_bytes") else None
    return round(float(size[1]) * _UNITS[size[2].upper()]) if size else None


def _parse_number(value: object) -> float | None:
    if not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _of_device(values: Mapping[str, Value]) -> Mapping[str, Value]:
    """Returns the defaults that depend on the device which these values name."""
    if values.get("engine.device") != "cuda":
        return {}
    return {f"engine.{name}": value for name, value in CUDA_DEFAULTS.items()}


def _build(values: Mapping[str, Value]) -> Config:
    sections = {}
    for section, section_type in get_type_hints(Config).items():
        own = {
            key.partition(".")[2]: value
            for key, value in values.items()
            if key.startswith(section + ".")
        }
        sections[section] = section_type(**own)
    return Config(**sections)


def _with_user_folders(config: Config, folders: UserFolders) -> Config:
    """Fills in the paths whose defaults depend on the user, and takes `~` for the home folder."""
    expand = folders.expand
    model, store = config.model, config.store
    cache_dir = model.cache_dir or folders.cache_dir()
    store_path = store.path or folders.store_path()
    if "://" in store_path:
        raise StartupError(
            f"store.path is {store_path!r}: this release keeps sessions in a SQLite file only; "
            "give a file's path"
        )
    server = config.server
    return dataclasses.replace(
        config,
        server=dataclasses.replace(
            server,
            tls_cert=expand(server.tls_cert),
            tls_key=expand(server.tls_key),
            tls_client_ca=expand(server.tls_client_ca),
            tokens_file=expand(server.tokens_file),
            secret_file=expand(server.secret_file),
        ),
        model=dataclasses.replace(
            model,
            source=expand(model.source),
            chat_template=expand(model.chat_template),
            cache_dir=expand(cache_dir),
        ),
        store=dataclasses.replace(store, path=expand(store_path)),
    )


def _spell(value: Value) -> str:
    """Returns a value as TOML spells it; JSON spells these types the same way."""
    return json.dumps(value, ensure_ascii=False)

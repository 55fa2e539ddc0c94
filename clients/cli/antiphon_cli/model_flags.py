"""Flags that say how a model is computed, shared by the commands that load one.

Each is a setting of the engine.
"""

import argparse
from typing import Final

_SETTING_OF: Final = {
    "device": "engine.device",
    "dtype": "engine.dtype",
    "quantization": "engine.quantization",
    "kv_cache_dtype": "engine.kv_cache_dtype",
}


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Declares where the model is computed, and in which numbers."""
    parser.add_argument("--device", metavar="DEVICE", help="cpu (default) or cuda")
    parser.add_argument("--dtype", metavar="DTYPE", help="auto, bfloat16 or float32")
    parser.add_argument(
        "--quantization",
        metavar="KIND",
        help="how weights are kept: auto (as the model has them), none, int8, int4 or fp8 (cuda)",
    )
    parser.add_argument(
        "--kv-cache-dtype",
        metavar="DTYPE",
        help="what the KV cache holds: auto (as --dtype), bfloat16 or float8_e4m3 (cuda)",
    )


def model_sets(arguments: argparse.Namespace) -> list[str]:
    """Returns those that were given as `section.key=value`."""
    return sets_of(arguments, _SETTING_OF)


def sets_of(arguments: argparse.Namespace, setting_of: dict[str, str]) -> list[str]:
    """Returns the flags that were given, of those named, as `section.key=value`."""
    given = {key: getattr(arguments, flag) for flag, key in setting_of.items()}
    return [f"{key}={value}" for key, value in given.items() if value is not None]

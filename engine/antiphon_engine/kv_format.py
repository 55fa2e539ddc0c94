"""What the KV cache's elements are, by the settings."""

from typing import Final

import torch

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_engine.kv_tensors import NARROW

_AUTO: Final = "auto"
_NARROW_NAME: Final = "float8_e4m3"
_NAMES: Final = (_AUTO, "bfloat16", _NARROW_NAME)


def kv_cache_dtype(config: EngineConfig, dtype: torch.dtype) -> torch.dtype:
    """Returns the type of the cache's elements where a model computes in `dtype` on CUDA.

    Raises:
        StartupError: the setting is unknown, or asks for what isn't kept beside that type.
    """
    asked = config.kv_cache_dtype
    if asked not in _NAMES:
        raise _unsupported(asked, f"known are {', '.join(_NAMES)}")
    if asked == _NARROW_NAME:
        return NARROW
    if asked != _AUTO and asked != dtype_name(dtype):
        raise _unsupported(
            asked, f"the model computes in {dtype_name(dtype)}: take auto, or set engine.dtype"
        )
    return dtype


def wide_kv_cache_dtype(config: EngineConfig, dtype: torch.dtype, *, where: str) -> torch.dtype:
    """As `kv_cache_dtype`, for what computes with caches of its own type alone; says `where`."""
    found = kv_cache_dtype(config, dtype)
    if found is NARROW:
        raise _unsupported(
            config.kv_cache_dtype,
            f"not with {where}; the kernels for CUDA keep it so, with engine.device = cuda",
        )
    return found


def dtype_name(dtype: torch.dtype) -> str:
    """Returns what the settings and the model's description call a type."""
    return _NARROW_NAME if dtype is NARROW else str(dtype).removeprefix("torch.")


def _unsupported(asked: str, reason: str) -> StartupError:
    return StartupError(f"engine.kv_cache_dtype = {asked} is not supported: {reason}")

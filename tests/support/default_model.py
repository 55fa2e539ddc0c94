"""The default model, converted once and kept where the server keeps it too."""

import os
from pathlib import Path

from antiphon_engine.api.checkpoint import resolve_model

# The first use on a machine converts the model, which takes a minute or two.
FIRST_USE_LIMIT_S = 900.0


def default_checkpoint() -> Path:
    """Returns its checkpoint directory."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return resolve_model(
        "demo", cache_dir=cache / "antiphon", progress=lambda stage, done, total: None
    )

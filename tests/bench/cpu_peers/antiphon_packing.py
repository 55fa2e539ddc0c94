"""Has Antiphon keep its packed weights, as the first start of a server does beside its work.

`python antiphon_packing.py CHECKPOINT SETTINGS`, the settings as JSON.
"""

import json
import sys
import threading
from pathlib import Path

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.cpu.packed_loading import KEEPER
from antiphon_engine.executor import Executor, WeightOrigin


def main() -> None:
    """Loads the model, and waits until its weights are kept."""
    checkpoint, settings = sys.argv[1:]
    # The default model's directory lies in the cache.
    origin = WeightOrigin(cache_dir=Path(checkpoint).parent)
    Executor(EngineConfig(**json.loads(settings)), Path(checkpoint), weights=origin)
    for thread in threading.enumerate():
        if thread.name == KEEPER:
            thread.join()


if __name__ == "__main__":
    main()

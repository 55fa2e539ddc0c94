"""Entry point of the engine process, which the front end starts."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon_engine.api.process import EngineStart, link_of_this_process, read_start
from antiphon_engine.watchdog import end_with_front_end

if TYPE_CHECKING:
    from antiphon_engine.engine_process import LoadedModel, OnProgress


def load(start: EngineStart, on_progress: "OnProgress") -> "LoadedModel":
    """Loads the checkpoint that `start` names. Raises StartupError."""
    from antiphon_engine.engine_process import LoadedModel, ModelFacts
    from antiphon_engine.executor import Executor

    executor = Executor(start.config, Path(start.checkpoint), on_progress=on_progress)
    model = executor.model_config
    return LoadedModel(
        executor=executor,
        device=executor.device,
        facts=ModelFacts(
            architecture=model.architecture,
            dtype=executor.dtype_name,
            quantization="",
            vocabulary_size=model.vocabulary_size,
            context_tokens=executor.memory.context_tokens,
            num_blocks=executor.memory.num_blocks,
            num_host_blocks=executor.memory.num_host_blocks,
        ),
    )


def main() -> int:
    """Runs the engine and returns the process's exit status."""
    link = link_of_this_process(sys.argv[1:])
    # Before torch is imported, which takes seconds.
    end_with_front_end(link)
    from antiphon_engine.engine_process import run_engine
    from antiphon_engine.logs import configure_logging

    start = read_start(sys.stdin.buffer)
    configure_logging(sys.stderr, level=start.logging.level, as_json=start.logging.as_json)
    return run_engine(start, link, load)


if __name__ == "__main__":
    sys.exit(main())

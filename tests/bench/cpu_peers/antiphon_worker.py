"""Antiphon's engine in process: its loop, stepped by whoever asks.

`python antiphon_worker.py CHECKPOINT SETTINGS`, these a JSON object of `EngineConfig`.
"""

import json
import sys
import time
from array import array
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.messages import SamplingParams, StopParams
from antiphon_engine.executor import Executor, WeightOrigin
from antiphon_engine.loading import describe
from bench.cpu_peers.answering import answer_requests
from support.loop_harness import request, running_loop_of


class InProcess:
    """A loop and the requests that it has had."""

    def __init__(self, checkpoint: Path, config: EngineConfig) -> None:
        # The default model's directory lies in the cache.
        origin = WeightOrigin(cache_dir=checkpoint.parent)
        self._stack = ExitStack()
        self._harness = self._stack.enter_context(
            running_loop_of(
                describe(Executor(config, checkpoint, weights=origin)),
                config,
                checkpoint=str(checkpoint),
            )
        )
        self._num_requests = 0

    def generate(
        self, prompts: list[list[int]], num_tokens: int
    ) -> list[tuple[list[int], list[float]]]:
        """Steps the loop until all have their tokens."""
        first_id = self._num_requests + 1
        self._num_requests += len(prompts)
        ids = range(first_id, first_id + len(prompts))
        begin_s = time.perf_counter()
        for request_id, prompt in zip(ids, prompts, strict=True):
            self._harness.submit(request_id, _greedy(prompt, num_tokens))
        heard = self._harness.heard
        arrivals_s: list[list[float]] = [[] for _ in prompts]
        while not all((request_id, 0) in heard.ended for request_id in ids):
            self._harness.step_or_wait()
            now_s = time.perf_counter() - begin_s
            for request_id, times in zip(ids, arrivals_s, strict=True):
                num_new = len(heard.tokens.get((request_id, 0), ())) - len(times)
                times.extend([now_s] * num_new)
        tokens = [heard.tokens.pop((request_id, 0)) for request_id in ids]
        heard.steps.clear()
        return list(zip(tokens, arrivals_s, strict=True))


def _greedy(prompt: list[int], num_tokens: int):
    return request(
        *array("i", prompt),
        sampling=SamplingParams(seed=0, temperature=0.0),
        stop=StopParams(max_output_tokens=num_tokens),
    )


def main() -> None:
    """Loads the model and answers."""
    checkpoint, settings = sys.argv[1:]
    answer_requests(InProcess(Path(checkpoint), EngineConfig(**json.loads(settings))).generate)


if __name__ == "__main__":
    main()

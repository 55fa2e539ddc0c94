"""OpenVINO GenAI in process, with its continuous batching. Runs in its own environment.

`python openvino_worker.py DIRECTORY NUM_THREADS`
"""

import sys
import time

import numpy as np
import openvino
import openvino_genai
from answering import answer_requests

_CACHE_GIB = 1
_MAX_STREAMS = 16
_MAX_STEP_TOKENS = 2048


class OpenVino:
    """A pipeline and the requests that it has had."""

    def __init__(self, directory, num_threads):
        settings = openvino_genai.SchedulerConfig()
        settings.cache_size = _CACHE_GIB
        settings.max_num_seqs = _MAX_STREAMS
        settings.max_num_batched_tokens = _MAX_STEP_TOKENS
        settings.enable_prefix_caching = True
        settings.dynamic_split_fuse = True
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            directory, settings, "CPU", {"INFERENCE_NUM_THREADS": num_threads}
        )
        self._num_requests = 0

    def generate(self, prompts, num_tokens):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.ignore_eos = True
        config.do_sample = False
        begin_s = time.perf_counter()
        handles = [self._add(prompt, config) for prompt in prompts]
        streams = [([], []) for _ in prompts]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now_s = time.perf_counter() - begin_s
            for handle, (ids, arrivals_s) in zip(handles, streams, strict=True):
                while handle.can_read():
                    for output in handle.read().values():
                        ids.extend(output.generated_ids)
                        arrivals_s.extend([now_s] * len(output.generated_ids))
        return streams

    def _add(self, prompt, config):
        self._num_requests += 1
        ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
        return self._pipeline.add_request(self._num_requests, ids, config)


def main() -> None:
    """Loads the model and answers."""
    directory, num_threads = sys.argv[1:]
    answer_requests(OpenVino(directory, int(num_threads)).generate)


if __name__ == "__main__":
    main()

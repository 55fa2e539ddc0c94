"""Engines that are libraries: each in a process of its own, which does nothing but drive it.

The process reads a JSON object a line, {"prompts": [[id …] …], "num_tokens": n}, and answers with
one, {"streams": [{"token_ids": […], "arrivals_s": […]} …]}; at first it says {"ready": true}.
Times are counted inside of it.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from bench.cpu_peers.streams import Streamed

_STOP_LIMIT_S = 60.0


class Worker:
    """A process that has loaded its model."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process_id = process.pid
        self._process = process
        self._log = log
        self._read()

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Streamed]:
        """See MeasuredEngine."""
        request = {"prompts": [list(prompt) for prompt in prompts], "num_tokens": num_tokens}
        _pipe(self._process.stdin).write(json.dumps(request) + "\n")
        _pipe(self._process.stdin).flush()
        return [Streamed(**stream) for stream in self._read()["streams"]]

    def _read(self) -> dict[str, Any]:
        # Libraries print too; their lines are no JSON objects.
        for line in _pipe(self._process.stdout):
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(f"ended with status {self._process.wait()}: see {self._log}")


@contextmanager
def worker(
    command: Sequence[str], *, environment: Mapping[str, str], log: Path
) -> Iterator[Worker]:
    """Starts a process and yields it once its model is loaded."""
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            yield Worker(process, log)
        finally:
            process.terminate()
            process.wait(_STOP_LIMIT_S)


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe

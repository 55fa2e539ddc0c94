"""Peers that are servers: llama.cpp's and vLLM's, asked over HTTP with server-sent events."""

import http.client
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.cpu_peers.streams import Streamed

_CALL_LIMIT_S = 600.0
_POLL_S = 0.02
_STOP_LIMIT_S = 30.0
HOST = "127.0.0.1"

Body = dict[str, Any]


class LlamaCalls:
    """How llama.cpp's server is asked."""

    path = "/completion"

    def body(self, prompt: Sequence[int], num_tokens: int) -> Body:
        """Returns a request."""
        return {
            "prompt": list(prompt),
            "n_predict": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "cache_prompt": True,
            "return_tokens": True,
        }

    def token_ids(self, event: Body) -> list[int]:
        """Returns what an event brings."""
        return [] if event.get("stop") else list(event.get("tokens") or [])


class OpenAiCalls:
    """How vLLM's server is asked."""

    path = "/v1/completions"

    def body(self, prompt: Sequence[int], num_tokens: int) -> Body:
        """Returns a request."""
        return {
            "model": "measured",
            "prompt": list(prompt),
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }

    def token_ids(self, event: Body) -> list[int]:
        """Returns what an event brings."""
        choices = event.get("choices") or [{}]
        return list(choices[0].get("token_ids") or [])


Calls = LlamaCalls | OpenAiCalls


class HttpServer:
    """A server that takes calls."""

    def __init__(self, process_id: int, port: int, calls: Calls) -> None:
        self.process_id = process_id
        self._port = port
        self._calls = calls

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Streamed]:
        """See MeasuredEngine: a thread and a connection for each prompt."""
        streams = [Streamed([], []) for _ in prompts]
        failures: list[Exception] = []
        begin_s = time.perf_counter()

        def call(prompt: Sequence[int], stream: Streamed) -> None:
            try:
                self._call(self._calls.body(prompt, num_tokens), stream, begin_s)
            except Exception as error:
                failures.append(error)

        threads = [
            threading.Thread(target=call, args=pair) for pair in zip(prompts, streams, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return streams

    def _call(self, body: Body, stream: Streamed, begin_s: float) -> None:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=_CALL_LIMIT_S)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", self._calls.path, json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {response.read(500)!r}")
        for line in response:
            data = line.removeprefix(b"data:").strip()
            if not line.startswith(b"data:") or data == b"[DONE]":
                continue
            ids = self._calls.token_ids(json.loads(data))
            stream.token_ids.extend(ids)
            stream.arrivals_s.extend([time.perf_counter() - begin_s] * len(ids))
        connection.close()


@contextmanager
def http_server(
    command: Callable[[int], Sequence[str]],
    calls: Calls,
    *,
    port: int,
    environment: Mapping[str, str],
    log: Path,
    start_limit_s: float,
) -> Iterator[HttpServer]:
    """Starts a server and yields it once it says that it is healthy.

    Args:
        command: Returns what to run, for a port.
        calls: How it is asked.
        port: Where it listens.
        environment: Of its process.
        log: Where its output goes.
        start_limit_s: How long it may take.
    """
    with log.open("w") as output:
        process = subprocess.Popen(
            command(port), env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            deadline_s = time.monotonic() + start_limit_s
            while not _is_healthy(port):
                if process.poll() is not None:
                    raise RuntimeError(f"ended with status {process.returncode}: see {log}")
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"not ready within {start_limit_s:g} s: see {log}")
                time.sleep(_POLL_S)
            yield HttpServer(process.pid, port, calls)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_healthy(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection(HOST, port, timeout=2)
        connection.request("GET", "/health")
        status = connection.getresponse().status
        connection.close()
    except (OSError, http.client.HTTPException):
        return False
    return status == 200

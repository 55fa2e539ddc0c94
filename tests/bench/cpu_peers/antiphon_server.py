"""Antiphon's server, asked over gRPC by its client."""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from antiphon.v1 import types_pb2

from antiphon_client import Client, raw_tokens
from bench.cpu_peers.streams import Streamed
from bench.serving import fixed_length

_STOP_LIMIT_S = 60.0


class AntiphonServer:
    """A server that takes calls."""

    def __init__(self, process_id: int, target: str, *, tells_ids: bool = True) -> None:
        self.process_id = process_id
        self.target = target
        self._tells_ids = tells_ids
        self._runner = asyncio.Runner()
        self._client = self._runner.run(self._connect())

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Streamed]:
        """See MeasuredEngine. Where the server isn't to tell ids, streams have none."""
        return self._runner.run(self._generate(prompts, num_tokens))

    def close(self) -> None:
        """Closes the connection."""
        self._runner.run(self._client.close())
        self._runner.close()

    async def _connect(self) -> Client:
        return Client(self.target)

    async def _generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Streamed]:
        config = fixed_length(num_tokens)
        if self._tells_ids:
            config.output.token_ids = True
            # Else tokens without a text would wait for the next one that has.
            config.output.special_tokens = True
        begin_s = time.perf_counter()
        streams = [self._stream(prompt, config, begin_s) for prompt in prompts]
        return list(await asyncio.gather(*streams))

    async def _stream(
        self, prompt: Sequence[int], config: types_pb2.GenerationConfig, begin_s: float
    ) -> Streamed:
        streamed = Streamed([], [])
        stream = self._client.stream_generate(raw_tokens(list(prompt)), config)
        async for event in stream:
            if event.HasField("delta"):
                ids = event.delta.token_ids
                streamed.token_ids.extend(ids)
                streamed.arrivals_s.extend([time.perf_counter() - begin_s] * len(ids))
        return streamed


@contextmanager
def antiphon_server(
    model: str, settings: Sequence[str], log: Path, *, tells_ids: bool = True
) -> Iterator[AntiphonServer]:
    """Starts a server on a port that the system chooses, and yields it once it takes calls."""
    words = [
        *(sys.executable, "-m", "antiphon_cli.main", "serve", "--model", model),
        *("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"),
        *(word for each in settings for word in ("--set", each)),
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        log.open("w") as errors,
        subprocess.Popen(
            [*words, "--store", str(Path(folder, "sessions.db"))],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            ready = process.stdout.readline().strip()
            if not ready:
                raise RuntimeError(f"the server ended before it was ready: see {log}")
            server = AntiphonServer(process.pid, ready.rpartition(" ")[2], tells_ids=tells_ids)
            yield server
            server.close()
        finally:
            process.terminate()
            process.wait(_STOP_LIMIT_S)

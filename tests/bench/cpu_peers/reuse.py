"""What reuse of the KV cache saves: the time to a second turn's first token, by where history is.

A history of 1,000 tokens and its answer are in the cache, or were pushed out of it by others'
prompts and lie in the host's tier, or nothing has them. All three in turn, over the wire.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any

from antiphon_client import AdminClient, Client, raw_tokens
from bench.cpu_peers.catalog import Machine, own_settings
from bench.cpu_peers.prompts import Prompts, text_ids
from bench.serving import StartedServer, fixed_length, started_process

_WEIGHTS = "stored"
_HISTORY_TOKENS = 1000
_TURN_TOKENS = 32
_POOL_TOKENS = 2048
_HOST_BYTES = 256 << 20
_PLACES = ("cold", "prefix", "host")


class Conversations:
    """Histories and what comes behind them, asked of one server."""

    def __init__(self, client: Client, admin: AdminClient, prompts: Prompts) -> None:
        self._client = client
        self._admin = admin
        self._prompts = prompts

    async def cold_s(self) -> float:
        """Returns what a turn's prompt takes that nothing has."""
        first_s, num_cached, _ = await self._ask(
            self._prompts.fresh(_HISTORY_TOKENS + 2 * _TURN_TOKENS), 1
        )
        # Pieces of text may begin with the same word, and a block's beginning is reused too.
        assert num_cached < _TURN_TOKENS, f"{num_cached} tokens were reused"
        return first_s

    async def second_turn_s(self, *, pushed_out: bool) -> float:
        """Returns what it takes where the first turn was computed before."""
        history = self._prompts.fresh(_HISTORY_TOKENS)
        _, _, answer = await self._ask(history, _TURN_TOKENS)
        if pushed_out:
            for _ in range(_POOL_TOKENS // _HISTORY_TOKENS + 1):
                await self._ask(self._prompts.fresh(_HISTORY_TOKENS), 1)
        question = self._prompts.fresh(_TURN_TOKENS)
        first_s, num_cached, _ = await self._ask([*history, *answer, *question], 1)
        assert num_cached >= _HISTORY_TOKENS - 1, f"only {num_cached} tokens were reused"
        return first_s

    async def num_onloads(self) -> int:
        """Returns how many blocks have come back from the host's tier."""
        return (await self._admin.get_engine_stats()).num_onloads_total

    async def _ask(self, prompt: Sequence[int], num_tokens: int) -> tuple[float, int, list[int]]:
        config = fixed_length(num_tokens)
        config.output.token_ids = True
        config.output.special_tokens = True
        begin_s, first_s, num_cached = time.perf_counter(), 0.0, 0
        answer: list[int] = []
        async for event in self._client.stream_generate(raw_tokens(list(prompt)), config):
            if event.HasField("started"):
                num_cached = event.started.cached_prompt_tokens
            elif event.HasField("delta") and event.delta.token_ids:
                first_s = first_s or time.perf_counter() - begin_s
                answer.extend(event.delta.token_ids)
        return first_s, num_cached, answer


def measure(machine: Machine, num_rounds: int) -> dict[str, Any]:
    """Measures in rounds, prints a table, and returns medians."""
    settings = own_settings(_WEIGHTS, machine) | {
        "num_threads": str(machine.num_threads),
        "kv_cache_tokens": str(_POOL_TOKENS),
        "host_cache_bytes": str(_HOST_BYTES),
    }
    words = [f"engine.{name}={value}" for name, value in settings.items()]
    with started_process("demo", words, machine.start_limit_s) as server:
        samples = asyncio.run(_rounds(server, machine, num_rounds))
    found = {f"{place}_s": round(statistics.median(samples[place]), 4) for place in _PLACES}
    print("| history of 1,000 tokens | second turn's first token, s | of computing it anew |")
    print("|---|---|---|")
    for place, title in zip(
        _PLACES, ("computed anew", "in the cache", "in the host's tier"), strict=True
    ):
        taken_s = found[f"{place}_s"]
        print(f"| {title} | {taken_s:.3f} | {taken_s / found['cold_s']:.0%} |")
    return found


async def _rounds(
    server: StartedServer, machine: Machine, num_rounds: int
) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {place: [] for place in _PLACES}
    prompts = Prompts(text_ids(machine.checkpoint), num_rounds)
    async with Client(server.target) as client, AdminClient(server.admin_target) as admin:
        conversations = Conversations(client, admin, prompts)
        await conversations.second_turn_s(pushed_out=False)  # The machine runs in.
        for _ in range(num_rounds):
            samples["cold"].append(await conversations.cold_s())
            samples["prefix"].append(await conversations.second_turn_s(pushed_out=False))
            before = await conversations.num_onloads()
            samples["host"].append(await conversations.second_turn_s(pushed_out=True))
            num_onloads = await conversations.num_onloads() - before
            assert num_onloads > 0, "nothing came from the host's tier"
    return samples

"""What the core's scheduling gives on a served model, as a user would try it.

Starts servers on free ports with the default model and measures over the wire: 16 requests at once
against one after the other; the second request behind a long shared system prompt against the
first; and the capacity policies where requests want twice the KV cache that is there. Prints a
table, and as the last line one JSON object.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from antiphon.v1 import types_pb2
from serving import Prompts, Timed, started_server, time_stream

from antiphon_client import Client, raw_tokens

POLICIES = ("guaranteed_no_evict", "max_utilization", "static_batch")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to measure."""

    num_requests: int
    prompt_tokens: int
    output_tokens: int
    system_tokens: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Requests that came at once, or one after the other."""

    wall_s: float
    output_tokens_per_s: float
    first_token_p50_s: float
    first_token_max_s: float


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All that is measured."""

    model: str
    num_requests: int
    output_tokens: int
    concurrent: Batch
    serial: Batch
    system_tokens: int
    first_request_first_token_s: float
    second_request_first_token_s: float
    under_pressure: dict[str, Batch]


def batch_of(timed: Sequence[Timed]) -> Batch:
    """Sums streams up."""
    wall_s = max(each.end_s for each in timed) - min(each.begin_s for each in timed)
    firsts = [each.first_s - each.begin_s for each in timed]
    return Batch(
        wall_s=wall_s,
        output_tokens_per_s=sum(each.num_tokens for each in timed) / wall_s,
        first_token_p50_s=statistics.median(firsts),
        first_token_max_s=max(firsts),
    )


async def texts(prompts: Prompts, plan: Plan) -> list[types_pb2.Prompt]:
    """Returns prompts that are new to the server."""
    return [await prompts.tokens(plan.prompt_tokens) for _ in range(plan.num_requests)]


async def run_together(client: Client, prompts: Prompts, plan: Plan) -> Batch:
    """Sends all requests at once."""
    return batch_of(
        await asyncio.gather(
            *(time_stream(client, text, plan.output_tokens) for text in await texts(prompts, plan))
        )
    )


async def run_in_turn(client: Client, prompts: Prompts, plan: Plan) -> Batch:
    """Sends each request when the one before has ended."""
    return batch_of(
        [await time_stream(client, text, plan.output_tokens) for text in await texts(prompts, plan)]
    )


async def behind_a_system_prompt(
    client: Client, prompts: Prompts, plan: Plan
) -> tuple[float, float]:
    """Returns the time to the first token of two requests that share their beginning."""
    system = list((await prompts.tokens(plan.system_tokens)).token_ids.ids)
    firsts = []
    for _ in range(2):
        question = list((await prompts.tokens(plan.prompt_tokens)).token_ids.ids)
        timed = await time_stream(client, raw_tokens(system + question), 1)
        firsts.append(timed.first_s - timed.begin_s)
    return firsts[0], firsts[1]


async def measure_at_ease(target: str, plan: Plan) -> Figures:
    """Measures what needs no pressure on memory."""
    async with Client(target) as client:
        model = await anext(client.list_models())
        prompts = Prompts(client, plan.seed)
        await time_stream(client, await prompts.tokens(plan.prompt_tokens), 4)
        concurrent = await run_together(client, prompts, plan)
        serial = await run_in_turn(client, prompts, plan)
        first_s, second_s = await behind_a_system_prompt(client, prompts, plan)
        return Figures(
            model=model.name,
            num_requests=plan.num_requests,
            output_tokens=plan.output_tokens,
            concurrent=concurrent,
            serial=serial,
            system_tokens=plan.system_tokens,
            first_request_first_token_s=first_s,
            second_request_first_token_s=second_s,
            under_pressure={},
        )


async def measure_pressed(target: str, plan: Plan) -> Batch:
    """Sends all requests at once to a server that has room for half of them."""
    async with Client(target) as client:
        prompts = Prompts(client, plan.seed + 1)
        await time_stream(client, await prompts.tokens(plan.prompt_tokens), 4)
        return await run_together(client, prompts, plan)


def table(figures: Figures) -> str:
    """Returns what people read."""
    batches = {
        f"{figures.num_requests} at once": figures.concurrent,
        f"{figures.num_requests} in turn": figures.serial,
        **{f"half the cache, {name}": each for name, each in figures.under_pressure.items()},
    }
    lines = [
        f"{name:<40}{batch.wall_s:>8.1f} s {batch.output_tokens_per_s:>8.1f} tokens/s, first token "
        f"p50 {batch.first_token_p50_s:.2f} s, max {batch.first_token_max_s:.2f} s"
        for name, batch in batches.items()
    ]
    lines.append(
        f"behind {figures.system_tokens} shared tokens: first token of the first request after "
        f"{figures.first_request_first_token_s:.2f} s, of the second after "
        f"{figures.second_request_first_token_s:.2f} s"
    )
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--model", default="demo", help="what to serve (default: demo)")
    parser.add_argument("--requests", type=int, default=16, help="of a batch (16)")
    parser.add_argument("--prompt-tokens", type=int, default=32, help="of each request (32)")
    parser.add_argument("--output-tokens", type=int, default=96, help="of each request (96)")
    parser.add_argument("--system-tokens", type=int, default=2000, help="that two share (2000)")
    parser.add_argument("--seed", type=int, default=time.time_ns(), help="of the prompts' words")
    arguments = parser.parse_args()
    plan = Plan(
        num_requests=arguments.requests,
        prompt_tokens=arguments.prompt_tokens,
        output_tokens=arguments.output_tokens,
        system_tokens=arguments.system_tokens,
        seed=arguments.seed,
    )
    with started_server(arguments.model, [], 900) as target:
        figures = asyncio.run(measure_at_ease(target, plan))
    cache_tokens = plan.num_requests * (plan.prompt_tokens + plan.output_tokens) // 2
    for policy in POLICIES:
        sets = [f"engine.capacity_policy={policy}", f"engine.kv_cache_tokens={cache_tokens}"]
        with started_server(arguments.model, sets, 900) as target:
            figures.under_pressure[policy] = asyncio.run(measure_pressed(target, plan))
    print(table(figures))
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main()

"""What a running engine process does for its front end; one process serves all these tests."""

from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.api.link import EngineLink
from antiphon_engine.api.messages import FinishReason, GenerationRequest, Scope
from support.engine_links import (
    TEXT,
    at_rest,
    failure_of,
    read_all,
    request,
    running,
)
from support.scripted_engine import Script

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXTS = {"*": TEXT, "3": [9]} | {str(i): [i + 100] * (i % 7) + [2] for i in range(10, 40)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def link(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineLink]:
    script = Script(texts=TEXTS, context_tokens=2048, vocabulary_size=2048, step_delay_s=0.002)
    path = tmp_path_factory.mktemp("engine")
    async with running(path, script, max_rows=8, kv_cache_tokens=1024) as link:
        yield link


async def test_serves_many_requests_at_once_each_whole(link: EngineLink) -> None:
    streams = {i: link.submit(request(1, i)) for i in range(10, 40)}

    for i, stream in streams.items():
        assert await read_all(stream) == {0: [*TEXTS[str(i)], -FinishReason.END_ID]}

    assert (await at_rest(link)).num_blocks_used == 0


async def test_facts_say_what_runs(link: EngineLink) -> None:
    assert link.facts is not None
    assert link.facts.architecture == "ScriptedForCausalLM"
    assert (link.facts.max_rows, link.facts.kv_cache_tokens) == (8, 1024)


async def test_reader_that_comes_late_gets_everything_at_once(link: EngineLink) -> None:
    await link.flush_prefix_cache()
    late = link.submit(request(1, 4, num_outputs=2))
    await at_rest(link)

    news = await late.next()

    assert news.cached_prompt_tokens == 0
    assert 0 < news.first_step_ns < news.first_token_ns < news.last_token_ns
    assert [news.outputs[i].token_ids for i in (0, 1)] == [TEXT, TEXT]
    assert [news.outputs[i].ended for i in (0, 1)] == [FinishReason.END_ID] * 2


async def test_cancel_finish_and_close_end_running_outputs(link: EngineLink) -> None:
    before = (await link.stats()).num_finished_total
    cancelled, finished, closed = (
        link.submit(request(*[4] * n, 3, max_output_tokens=250)) for n in (1, 2, 3)
    )
    await cancelled.next()
    await finished.next()

    cancelled.cancel()
    finished.finish_output(0, 1)
    closed.close()

    assert (await read_all(cancelled))[0][-1] == -FinishReason.CANCELLED
    assert (await read_all(finished))[0][-1] == -FinishReason.FINISHED_BY_CALLER
    stats = await at_rest(link)
    assert stats.num_blocks_used == 0
    grown = {
        reason: num - before.get(reason, 0) for reason, num in stats.num_finished_total.items()
    }
    assert (grown["CANCELLED"], grown["STOP_SEQUENCE"], grown.get("STOP", 0)) == (2, 1, 0)


async def test_prefix_queries(link: EngineLink) -> None:
    await link.flush_prefix_cache()
    prompt = request(*range(10, 110))
    await read_all(link.submit(prompt))

    assert await link.match_prefix(Scope(), prompt.prompt) == 96
    assert await link.flush_prefix_cache() == 4  # the block that the prompt ends in, too
    assert await link.match_prefix(Scope(), prompt.prompt) == 0


async def test_refused_request_fails_with_its_reason(link: EngineLink) -> None:
    error = await failure_of(link.submit(request(*[4] * 1100)))

    assert error.reason is ErrorReason.NEVER_FITS
    assert error.metadata == {"needed_blocks": "35", "available_blocks": "32"}


async def test_hints_on_sessions_reach_the_engine(
    link: EngineLink,
) -> None:
    await link.flush_prefix_cache()
    left, kept = range(600, 900), range(1000, 1300)
    await read_all(link.submit(in_session(request(*kept, max_output_tokens=1), 1)))
    await read_all(link.submit(in_session(request(*left, max_output_tokens=1), 2)))

    link.fork_session(1, 3)
    link.rewind_session(3, 64)
    link.close_session(2)
    link.close_session(99)
    await read_all(link.submit(request(*range(1400, 1900), max_output_tokens=1)))

    matches = [await link.match_prefix(Scope(), request(*prompt).prompt) for prompt in (kept, left)]
    assert matches[0] > matches[1]


def in_session(asked: GenerationRequest, session: int) -> GenerationRequest:
    return msgspec.structs.replace(asked, session=session)

"""Every token that one of a checkpoint's files takes for the end of an answer ends it."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.types_pb2 import FinishReason, GenerationConfig, SamplingParams

from support.answers import ask, ask_in_session
from support.canary import Canary
from support.greedy_reference import reference_outputs
from support.greedy_requests import greedy_request, served_outputs
from support.real_server import real_server
from support.server import RunningServer
from support.tiny_checkpoints import make_checkpoint, prompts
from support.tiny_tokenizers import save_byte_level_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPTS = prompts(6, least=5, most=40)
BUDGET = 32
SURE = 100.0
"""A bias that makes a token the likeliest anywhere."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a model's files name which token."""

    in_config: int
    in_generation_config: int
    of_tokenizer: int

    def all(self) -> tuple[int, ...]:
        return (self.in_config, self.in_generation_config, self.of_tokenizer)


@dataclass(frozen=True, slots=True)
class Served:
    """A server of a model whose greedy answers run into its ends."""

    server: RunningServer
    checkpoint: Path
    ends: Ends
    canary: Canary


def set_members(path: Path, **members: object) -> None:
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | members))


def make_model(directory: Path) -> tuple[Path, Ends]:
    """Makes a model that by itself says two of its end tokens in the midst of its answers."""
    checkpoint = save_byte_level_tokenizer(make_checkpoint(directory))
    first, second, *_ = reference_outputs(checkpoint, PROMPTS)
    in_config = first[9]
    in_generation_config = next(i for i in second[5:] if i not in first)
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text())
    definition = json.loads((checkpoint / "tokenizer.json").read_text())
    (of_tokenizer,) = (
        token["id"]
        for token in definition["added_tokens"]
        if token["content"] == settings["eos_token"]
    )
    set_members(checkpoint / "config.json", eos_token_id=in_config)
    return checkpoint, Ends(in_config, in_generation_config, of_tokenizer)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    directory = tmp_path_factory.mktemp("ends")
    checkpoint, ends = make_model(directory / "tiny")
    set_members(
        checkpoint / "generation_config.json",
        eos_token_id=[ends.in_config, ends.in_generation_config],
        do_sample=True,
        temperature=0.7,
        top_k=20,
    )
    async with real_server(directory, checkpoint) as server:
        yield Served(server, checkpoint, ends, await Canary.of(server))


def pushed_to(token_id: int, **sampling: float | int) -> GenerateRequest:
    """Asks for an answer that would be this token again and again."""
    request = greedy_request(PROMPTS[0])
    request.config.sampling.CopyFrom(SamplingParams(logit_bias={token_id: SURE}, **sampling))
    request.config.stop.min_output_tokens = 0
    return request


async def test_greedy_answers_stop_where_another_library_stops_them(served: Served) -> None:
    ids = {served.ends.in_config, served.ends.in_generation_config}
    expected = reference_outputs(served.checkpoint, PROMPTS, end_ids=ids)

    answers = await served_outputs(served.server, PROMPTS)

    assert [list(answer.output.token_ids) for answer in answers] == expected
    ended = [answer for answer in answers if answer.output.token_ids[-1] in ids]
    assert {answer.output.token_ids[-1] for answer in ended} == ids
    for answer in answers:
        stopped = answer in ended
        reason = (
            FinishReason.FINISH_REASON_STOP
            if stopped
            else FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS
        )
        assert answer.output.finish_reason == reason
        assert answer.usage.output_tokens == len(answer.output.token_ids)
        assert (answer.usage.output_tokens < BUDGET) or not stopped
    await served.canary.check()


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.3, "seed": 5}, {}])
async def test_each_end_of_the_union_ends_an_answer_unseen(
    served: Served, which: int, sampling: dict[str, float]
) -> None:
    token_id = served.ends.all()[which]

    answer = await ask(served.server, pushed_to(token_id, **({"seed": 1} | sampling)))

    assert answer.output.finish_reason == FinishReason.FINISH_REASON_STOP
    assert answer.output.stop_match.token_id == token_id
    assert list(answer.output.token_ids) == [token_id]
    assert answer.usage.output_tokens == 1
    assert answer.text == ""


@pytest.mark.parametrize("which", range(3))
async def test_each_end_of_the_union_ends_a_turn_and_the_session_goes_on(
    served: Served, which: int
) -> None:
    token_id = served.ends.all()[which]
    ending = GenerationConfig(sampling=SamplingParams(temperature=0, logit_bias={token_id: SURE}))
    going_on = greedy_request([1], ignore_eos=True, max_output_tokens=5).config

    session, first = await ask_in_session(served.server, "Say nothing.", ending)
    _, second = await ask_in_session(served.server, "Now go on.", going_on, session=session)

    assert first.output.finish_reason == FinishReason.FINISH_REASON_STOP
    assert first.output.stop_match.token_id == token_id
    assert first.output.text == ""
    assert second.usage.output_tokens == 5
    await served.canary.check()


async def test_without_a_generation_config_the_others_hold(tmp_path: Path) -> None:
    checkpoint, ends = make_model(tmp_path / "tiny")
    (checkpoint / "generation_config.json").unlink()
    async with real_server(tmp_path, checkpoint) as server:
        for token_id in (ends.in_config, ends.of_tokenizer):
            answer = await ask(server, pushed_to(token_id, temperature=0))
            assert answer.output.finish_reason == FinishReason.FINISH_REASON_STOP
            assert answer.usage.output_tokens == 1
        ordinary = await ask(server, pushed_to(ends.in_generation_config, temperature=0))
    assert ordinary.output.finish_reason == FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS
    assert set(ordinary.output.token_ids) == {ends.in_generation_config}

"""Between the contract's messages and the engine's."""

from array import array

import pytest
from antiphon.v1.types_pb2 import SamplingParams

from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.messages import FinishReason, TokenLogprobs
from antiphon_server.convert import (
    FINISH_REASONS,
    PROMPT_PART_TOKENS,
    pack_token_ids,
    to_checkpoint_config,
    to_position_logprobs,
    to_prompt_parts,
)
from support.served_models import TextSide


def test_every_reason_of_the_engine_has_one_of_the_contract() -> None:
    assert set(FINISH_REASONS) == set(FinishReason)
    assert 0 not in FINISH_REASONS.values()


def test_log_probabilities_are_never_above_zero(text: TextSide) -> None:
    entry = to_position_logprobs(
        5,
        TokenLogprobs(
            request_id=0,
            output_index=0,
            chosen=1e-7,
            top_ids=array("i", [5, 6]).tobytes(),
            top_logprobs=array("f", [1e-7, -2]).tobytes(),
        ),
        text.tokenizer,
    )

    assert entry.chosen.logprob == entry.top[0].logprob == 0
    assert [top.token_id for top in entry.top] == [5, 6]
    assert entry.top[1].token == text.tokenizer.token_bytes(6)


@pytest.mark.parametrize("num_tokens", [1, PROMPT_PART_TOKENS, 2 * PROMPT_PART_TOKENS + 1])
def test_prompt_parts_join_to_the_prompt_and_fit_a_message(num_tokens: int) -> None:
    prompt_ids = [2**31 - 1] * num_tokens

    parts = list(to_prompt_parts(prompt_ids))

    assert [t for part in parts for t in part.token_ids] == prompt_ids
    assert all(part.ByteSize() <= 1 << 20 for part in parts)
    assert [part.first_position for part in parts] == [
        i * PROMPT_PART_TOKENS for i in range(len(parts))
    ]


def test_token_ids_travel_as_int32() -> None:
    assert pack_token_ids([1, 2**31 - 1]) == b"\x01\0\0\0\xff\xff\xff\x7f"


def test_checkpoints_defaults_are_taken_by_name() -> None:
    config = to_checkpoint_config({"temperature": 0.5, "top_k": -1, "top_p": 0.75, "other": 3})

    assert config.sampling == SamplingParams(temperature=0.5, top_k=0, top_p=0.75)


def test_checkpoints_default_out_of_range_keeps_the_server_from_starting() -> None:
    with pytest.raises(StartupError, match=r"top_p to 1\.5"):
        to_checkpoint_config({"top_p": 1.5})

"""Guided requests through the whole loop, with a scripted model that would say something else."""

import json
import re
from array import array
from dataclasses import replace

import jsonschema
import msgspec
import pytest

from antiphon_engine.api.errors import ErrorReason
from antiphon_engine.api.grammar import GrammarBackend
from antiphon_engine.api.messages import Cancel, FinishReason, Hold, Release, StopParams
from support.grammars import broken, regex, schema
from support.guided_loop import (
    GuidedModel,
    ahead,
    only_failure,
    reason,
    run_to_ends,
    run_until_ended,
)
from support.loop_harness import request, running_loop
from support.scripted_engine import Script

ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "state": {"enum": ["open", "paid", "gone"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["id", "state", "tags"],
    "additionalProperties": False,
}

each_backend = pytest.mark.parametrize("backend", list(GrammarBackend))
NUM_DEPTHS = 3
each_depth = pytest.mark.parametrize("depth", range(NUM_DEPTHS))


@each_backend
@each_depth
def test_output_satisfies_its_grammar_and_ends(
    model: GuidedModel, backend: GrammarBackend, depth: int
) -> None:
    said = '{"id":17,"state":"paid","tags":["a","bc"]} and more'

    with model.running(said, ahead(depth)) as harness:
        run_to_ends(harness, {1: model.request(schema(ORDER, backend))})

    assert model.text(harness.heard.tokens[1, 0]) == said.removesuffix(" and more")
    assert reason(harness, 1) is FinishReason.END_ID


@each_backend
@each_depth
def test_what_the_model_wants_gives_way_to_the_grammar(
    model: GuidedModel, backend: GrammarBackend, depth: int
) -> None:
    stop = StopParams(max_output_tokens=400, end_ids=(model.end_id,))
    request = model.request(regex("[0-9]{3}-(north|south)", backend), stop=stop)

    with model.running("hello world", ahead(depth)) as harness:
        run_to_ends(harness, {1: request})

    assert re.fullmatch("[0-9]{3}-(north|south)", model.text(harness.heard.tokens[1, 0]))


@each_backend
def test_a_model_that_loves_blanks_ends_all_the_same(
    model: GuidedModel, backend: GrammarBackend
) -> None:
    with model.running([model.ids(" ")[0]]) as harness:
        run_to_ends(harness, {1: model.request(schema(ORDER, backend, max_blank=3))})

    text = model.text(harness.heard.tokens[1, 0])
    assert reason(harness, 1) is FinishReason.END_ID
    jsonschema.validate(json.loads(text), ORDER)
    assert not re.search(r"[ \t\r\n]{5,}", text)


@each_depth
def test_company_is_not_disturbed(model: GuidedModel, depth: int) -> None:
    alone, plain = "one two three four", model.request(None)

    with model.running(alone, ahead(depth)) as harness:
        run_to_ends(harness, {1: plain, 2: model.request(schema(ORDER)), 3: plain})

    assert harness.heard.tokens[1, 0] == harness.heard.tokens[3, 0]
    assert model.text(harness.heard.tokens[1, 0]).startswith(alone)
    jsonschema.validate(json.loads(model.text(harness.heard.tokens[2, 0])), ORDER)


@each_backend
@each_depth
def test_every_output_has_a_matcher_of_its_own(
    model: GuidedModel, backend: GrammarBackend, depth: int
) -> None:
    single = model.request(regex("[a-z]{2}[0-9]{2}", backend))
    request = msgspec.structs.replace(single, num_outputs=4)

    with model.running("hello", ahead(depth)) as harness:
        run_to_ends(harness, {1: request})

    texts = [model.text(harness.heard.tokens[1, i]) for i in range(4)]
    assert all(re.fullmatch("[a-z]{2}[0-9]{2}", text) for text in texts)
    assert [reason(harness, 1, i) for i in range(4)] == [FinishReason.END_ID] * 4


@each_depth
def test_a_grammar_that_can_not_be_compiled_fails_its_request_alone(
    model: GuidedModel, depth: int
) -> None:
    plain = model.request(None)

    with model.running("one two", ahead(depth)) as harness:
        run_to_ends(harness, {1: plain, 2: model.request(broken()), 3: plain})

    assert only_failure(harness, 2).reason == ErrorReason.UNSUPPORTED_CONSTRAINT
    assert not harness.heard.tokens[2, 0]
    assert len(harness.heard.tokens[1, 0]) == len(harness.heard.tokens[3, 0]) == 60


@each_depth
def test_a_grammar_that_takes_too_long_for_a_token_fails_its_request_alone(
    model: GuidedModel, depth: int
) -> None:
    config = replace(ahead(depth), grammar_step_limit_ms=0)

    with model.running("one two", config) as harness:
        run_to_ends(harness, {1: model.request(None), 2: model.request(regex("[^a]*[^b]*c"))})

        failed = only_failure(harness, 2)
        assert failed.reason == ErrorReason.CONSTRAINT_TOO_COMPLEX
        assert failed.metadata == {"limit_ms": "0"}
        assert len(harness.heard.tokens[1, 0]) == 60
        run_to_ends(harness, {3: model.request(None)})
        assert reason(harness, 3) is FinishReason.MAX_OUTPUT_TOKENS


def test_a_text_that_no_token_continues_fails_its_request_alone(speechless: GuidedModel) -> None:
    requests = {1: speechless.request(None), 2: speechless.request(regex("a\U00100000"))}

    with speechless.running("one two") as harness:
        run_to_ends(harness, requests)
        stats = harness.stats()

    assert only_failure(harness, 2).reason == ErrorReason.UNSUPPORTED_CONSTRAINT
    assert stats.num_running == 0
    assert len(harness.heard.tokens[1, 0]) == 60


def test_a_request_may_end_while_its_grammar_is_compiled(model: GuidedModel) -> None:
    requests = {1: model.request(schema(ORDER))}

    with model.running("one two") as harness:
        harness.submit(1, requests[1])
        harness.send(Cancel(request_id=1))
        run_until_ended(harness, requests)

        assert reason(harness, 1) is FinishReason.CANCELLED
        assert not harness.heard.tokens[1, 0]
        (ended,) = harness.heard.ended[1, 0]
        assert ended.times is not None
        assert ended.times.grammar_wait_ns > 0
        assert not ended.times.num_steps
        run_to_ends(harness, {2: model.request(schema(ORDER))})
        assert reason(harness, 2) is FinishReason.END_ID


def test_the_wait_for_a_grammar_ends_before_the_first_step_and_others_have_none(
    model: GuidedModel,
) -> None:
    with model.running("hello") as harness:
        run_to_ends(harness, {1: model.request(regex("[a-z]{4}")), 2: model.request(None)})

    guided, plain = (harness.heard.ended[number, 0][0].times for number in (1, 2))
    assert guided is not None
    assert plain is not None
    assert 0 < guided.grammar_wait_ns <= guided.chunks[0].start_ns - guided.arrival_ns
    assert plain.grammar_wait_ns == 0


@each_depth
def test_a_hold_changes_nothing(model: GuidedModel, depth: int) -> None:
    said = '{"id":17,"state":"paid","tags":["a","bc"]}'
    requests = {1: model.request(schema(ORDER))}

    with model.running(said, ahead(depth)) as harness:
        harness.submit(1, requests[1])
        harness.send(Hold(request_id=1), Release(request_id=1))
        while len(harness.heard.tokens[1, 0]) < 4:
            harness.step_or_wait()
        harness.send(Hold(request_id=1))
        for _ in range(6):
            harness.step()
        harness.send(Release(request_id=1))
        run_until_ended(harness, requests)

    assert model.text(harness.heard.tokens[1, 0]) == said


@each_backend
@each_depth
@pytest.mark.parametrize("every", [1, 3])
def test_forced_pauses_change_nothing(
    model: GuidedModel, backend: GrammarBackend, depth: int, every: int
) -> None:
    said = '{"id":17,"state":"paid","tags":["a","bc"]}'
    config = replace(ahead(depth), fault_pause_every=every, block_tokens=8)

    with model.running(said, config) as harness:
        run_to_ends(harness, {1: model.request(schema(ORDER, backend)), 2: model.request(None)})
        stats = harness.stats()

    assert model.text(harness.heard.tokens[1, 0]) == said
    assert stats.num_preemptions_total > 0
    # The end is no token of the grammar's.
    assert stats.num_matched_tokens_total == len(harness.heard.tokens[1, 0]) - 1


@each_backend
@each_depth
def test_output_that_is_taken_up_again_goes_on_in_its_grammar(
    model: GuidedModel, backend: GrammarBackend, depth: int
) -> None:
    said = '{"id":17,"state":"paid","tags":["a","bc"]}'
    uncut = model.request(schema(ORDER, backend))
    ids = model.ids(said)

    # Each depth at other places, and all together at each.
    for num in range(1 + depth, len(ids) + 1, NUM_DEPTHS):
        with model.running(ids[num:] or [3], ahead(depth)) as harness:
            run_to_ends(harness, {1: uncut.resumed_behind(array("i", ids[:num]))})

        rest = model.text(harness.heard.tokens[1, 0])
        assert model.text(ids[:num]) + rest == said
        assert reason(harness, 1) is FinishReason.END_ID


@each_backend
def test_the_grammar_wins_over_the_least_length_where_nothing_else_may_follow(
    model: GuidedModel, backend: GrammarBackend
) -> None:
    stop = StopParams(max_output_tokens=60, min_output_tokens=30, end_ids=(model.end_id,))
    closed = model.request(regex("[0-9]{3}", backend), stop=stop)
    open_ended = model.request(regex("[0-9]{3}[0-9]*", backend), stop=stop)

    with model.running([model.end_id]) as harness:
        run_to_ends(harness, {1: closed, 2: open_ended})

    assert re.fullmatch("[0-9]{3}", model.text(harness.heard.tokens[1, 0]))
    assert len(harness.heard.tokens[2, 0]) == 31
    assert reason(harness, 2) is FinishReason.END_ID


def test_a_grammar_without_an_end_id_is_refused(model: GuidedModel) -> None:
    stop = StopParams(max_output_tokens=60)

    with model.running("one") as harness:
        run_to_ends(harness, {1: model.request(regex("[0-9]"), stop=stop)})

    assert only_failure(harness, 1).reason == ErrorReason.INVALID_FIELD
    assert "end_ids" in only_failure(harness, 1).message


def test_without_a_tokenizer_guided_requests_are_refused_and_others_served() -> None:
    with running_loop(Script(texts={"*": [4]})) as harness:
        guided = msgspec.structs.replace(
            request(1, 2, stop=StopParams(max_output_tokens=8, end_ids=(9,))),
            grammar=regex("[0-9]"),
        )
        run_to_ends(harness, {1: guided, 2: request(1, 2)})

    assert only_failure(harness, 1).reason == ErrorReason.UNSUPPORTED_CONSTRAINT
    assert len(harness.heard.tokens[2, 0]) == 8

"""Every field that a request may have does something, or is refused by name."""

import asyncio
import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from antiphon.v1 import inference_pb2, model_pb2, session_pb2, types_pb2
from antiphon.v1.session_pb2 import (
    AppendItems,
    CancelRequest,
    ConverseRequest,
    CreateSessionRequest,
    OpenSession,
    Session,
    StartTurn,
    UpdateSessionRequest,
)
from antiphon.v1.types_pb2 import Prompt, ToolChoice
from google.protobuf import message_factory
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from support.fake_engine import FakeEngine, ids_from_prompt
from support.field_asker import CONFIG, METHODS, Asker, Outcome
from support.request_fields import leaves, parents_there, set_field
from support.server import running_server
from support.session_rows import user
from support.tiny_tokenizers import save_byte_level_tokenizer

SPECIAL_ID = 942
"""Of `<|im_start|>` in the tiny tokenizer."""
SPOKEN = "say <|im_end|> twice"
TURN = StartTurn(turn_id="t", items=[user("hi")], config=CONFIG)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NAME = "sessions/SESSION"
T1 = f"{NAME}/turns/t1"

PLAIN = {
    "Generate": [
        inference_pb2.GenerateRequest(prompt=Prompt(text=SPOKEN), config=CONFIG),
        inference_pb2.GenerateRequest(
            prompt=Prompt(conversation={"items": [user("hi")]}), config=CONFIG
        ),
    ],
    "RenderPrompt": [
        model_pb2.RenderPromptRequest(prompt=Prompt(text=SPOKEN)),
        model_pb2.RenderPromptRequest(prompt=Prompt(conversation={"items": [user("hi")]})),
    ],
    "ValidateConstraint": [
        inference_pb2.ValidateConstraintRequest(constraint={"regex": "a"}),
    ],
    "Tokenize": [model_pb2.TokenizeRequest(text=SPOKEN)],
    "Detokenize": [model_pb2.DetokenizeRequest(token_ids=[0, 1, SPECIAL_ID, 50])],
    "GetModel": [model_pb2.GetModelRequest(name="models/tiny")],
    "CreateSession": [CreateSessionRequest(session_id="new-SESSION", items=[user("hi")])],
    "GetSession": [session_pb2.GetSessionRequest(name=NAME)],
    "DeleteSession": [session_pb2.DeleteSessionRequest(name=NAME)],
    "RunTurn": [session_pb2.RunTurnRequest(session=NAME, turn=TURN)],
    "ForkSession": [session_pb2.ForkSessionRequest(name=NAME, session_id="new-SESSION")],
    "RewindSession": [session_pb2.RewindSessionRequest(name=NAME, to={"turn": T1})],
    "AppendTurn": [
        session_pb2.AppendTurnRequest(
            session=NAME, append=AppendItems(turn_id="t", items=[user("hi")])
        )
    ],
    "CancelTurn": [session_pb2.CancelTurnRequest(name=T1)],
    "GetTurn": [session_pb2.GetTurnRequest(name=T1)],
    "StreamTurnEvents": [session_pb2.StreamTurnEventsRequest(name=T1)],
    "ListTurns": [session_pb2.ListTurnsRequest(session=NAME)],
    "Converse": [
        ConverseRequest(open=OpenSession(name=NAME)),
        ConverseRequest(
            open=OpenSession(
                create=CreateSessionRequest(session_id="new-SESSION", items=[user("hi")])
            )
        ),
        ConverseRequest(generate=TURN),
        ConverseRequest(append=AppendItems(turn_id="t", items=[user("hi")])),
        ConverseRequest(cancel=CancelRequest(turn_id="t1")),
    ],
}
PLAIN["StreamGenerate"] = PLAIN["Generate"]
PLAIN["MultiplexGenerate"] = [
    *(
        inference_pb2.MultiplexGenerateRequest(tag=1, generate=request)
        for request in PLAIN["Generate"]
    ),
    inference_pb2.MultiplexGenerateRequest(tag=1, cancel=inference_pb2.CancelGeneration()),
    inference_pb2.MultiplexGenerateRequest(
        tag=1, generate=PLAIN["Generate"][0], traceparent=TRACEPARENT
    ),
]

VALUES = {
    r"message\.role$": types_pb2.ROLE_ASSISTANT,
    r"tool_choice\.mode$": ToolChoice.MODE_REQUIRED,
    r"stop_strings$": ["a"],
    r"time_limit$": Duration(nanos=1),
    r"timeout$": Duration(nanos=1),
    r"(idle_ttl|limit|duration)$": Duration(seconds=77),
    r"latest_expire_time$": Timestamp(seconds=4_000_000_000),
    r"labels$": {"no": "such"},
    r"logit_bias$": {3: 2.5},
    r"token_ids\.ids$": [3, 4],
    r"repetition_penalty$": 1.5,
    r"max_output_tokens$": 7,
    r"prompt\.text$": "something else",
    r"message\.text$": "something else",
    r"^token_ids$": [7],
    r"if_busy$": StartTurn.IF_BUSY_INTERRUPT,
    r"page_size$": 1,
    r"traceparent$": TRACEPARENT,
    r"expected_head\.turn$": f"{NAME}/turns/other",
    r"update_mask$": FieldMask(paths=["instructions"]),
    r"clear_defaults$": FieldMask(paths=["sampling"]),
}

OUTPUT_ONLY = (
    "name|state|expire_time|create_time|update_time|etag|head_turn|num_turns|parent_session"
    r"|fork_turn|residency\.\w+"
)
WITHOUT_EFFECT = {
    rf"^(CreateSession \.|Converse \.open\.create\.)session\.({OUTPUT_ONLY})$": "output only",
    rf"^UpdateSession \.session\.(model|history_policy|(?!name|etag)({OUTPUT_ONLY}))$": "fixed",
    r"^(Generate|StreamGenerate|RenderPrompt) \.config\.constraint\.none$": "none to lift",
    r"^MultiplexGenerate \.generate\.config\.constraint\.none$": "none to lift",
    r"^RenderPrompt \.config\.(sampling|stop|output|priority)": "no template needs it",
    r"^RenderPrompt \.config\.constraint\.(?!compact_json)": "no template needs it",
}
"""Fields that rightly change nothing here."""

SHOWN_ELSEWHERE = {
    r"^Drain \.limit$": "test_turns_cut_at_the_limit_keep_their_output_over_a_restart",
    r"\.on_disconnect$": "test_a_broken_stream_leaves_its_turn_as_it_asked",
    r"if_busy$": "test_what_was_delivered_stays_and_the_rest_goes",
    r"\.(take_over|attachment_id)$": "test_an_older_stream_gives_way_and_its_turn_goes_on",
    r"\.watch_only$": "test_a_watching_stream_is_told_of_everything_and_drives_nothing",
    r"max_unacked_events$": "test_a_stream_holds_back_past_what_may_be_unacknowledged",
    r"^StreamTurnEvents \.epoch$": "test_a_cursor_of_another_epoch_is_reset",
    r"cancel_active$": "test_turns_are_stopped_for_a_rewind_where_asked",
    r"discard_partial$": "test_a_discarded_turn_leaves_the_history_as_before",
    r"^WatchEngineStats \.interval$": "test_stats_are_watched_at_the_interval_asked_for",
    r"^ListModels \.page_size$": "test_bad_page_is_refused_by_field",
}

UPDATABLE = (
    "instructions",
    "tools",
    "defaults",
    "retention",
    "labels",
    "idle_ttl",
    "latest_expire_time",
)

FIELDS = [
    f"{name} .{path}" for name, method in METHODS.items() for path in leaves(method.input_type)
]


PLAIN_FOR = {"Converse .frame_id": 2, "MultiplexGenerate .tracestate": 3}
"""Which plain request to add a field to, where that is not the first with most of its parents."""


def with_start_token(directory: Path) -> Path:
    """Makes a saved tokenizer put a token before every text; returns `directory`."""
    path = directory / "tokenizer.json"
    definition = json.loads(path.read_text(encoding="utf-8"))
    token = "<|endoftext|>"
    token_id = next(t["id"] for t in definition["added_tokens"] if t["content"] == token)
    start = {"SpecialToken": {"id": token, "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [start, text],
        "pair": [start, text],
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }
    path.write_text(json.dumps(definition), encoding="utf-8")
    return directory


def plain_request(name: str, path: str) -> Message:
    """Returns the request to which the field is added."""
    kind = message_factory.GetMessageClass(METHODS[name].input_type)
    if name == "UpdateSession":
        part = path.split(".")[1] if path.startswith("session.") else ""
        return UpdateSessionRequest(
            session=Session(name=NAME, instructions="new"),
            update_mask=FieldMask(paths=[part if part in UPDATABLE else "labels"]),
        )
    plain = PLAIN.get(name, [kind()])
    if (number := PLAIN_FOR.get(f"{name} .{path}")) is not None:
        return plain[number]
    return max(plain, key=lambda request: parents_there(request, path))


async def both(asker: Asker, name: str, path: str) -> tuple[Outcome, Outcome]:
    """Returns what comes of a request without and with a field."""
    plain = plain_request(name, path)
    changed = type(plain)()
    changed.CopyFrom(plain)
    set_field(changed, path, VALUES)
    return await asker.outcome(name, plain), await asker.outcome(name, changed)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Outcome, Outcome]]:
    """For each field, what comes of a request without and with it."""

    async def ask() -> dict[str, tuple[Outcome, Outcome]]:
        engine = FakeEngine(
            script=lambda *asked: (SPECIAL_ID, *itertools.islice(ids_from_prompt(*asked), 50))
        )
        directory = tmp_path_factory.mktemp("server")
        checkpoint = with_start_token(save_byte_level_tokenizer(directory / "tokenizer"))
        async with running_server(directory, engine=engine, checkpoint=checkpoint) as server:
            asker = Asker(server, engine)
            # Behind a drain nothing else is answered.
            fields = sorted(FIELDS, key=lambda field: field.startswith("Drain "))
            return {field: await both(asker, *field.split(" .")) for field in fields}

    return asyncio.run(ask())


def named_in(patterns: Iterable[str], field: str) -> bool:
    return any(re.search(pattern, field) for pattern in patterns)


def is_as_said(field: str, without_it: Outcome, with_it: Outcome) -> bool:
    """Whether the field was refused by name, or changed what it should."""
    name, path = field.split(" .")
    if with_it.refused is not None:
        by_method = with_it.refused["capability"].endswith(f".{name}")
        at = re.sub(r"\[\d+\]", "", with_it.refused.get("field", ""))
        return by_method or path.startswith(at) or at.startswith(path)
    if named_in(WITHOUT_EFFECT, field):
        return with_it.seen == without_it.seen
    return named_in(SHOWN_ELSEWHERE, field) or with_it.seen != without_it.seen


def test_every_field_has_an_effect_or_is_refused_by_name(
    outcomes: dict[str, tuple[Outcome, Outcome]],
) -> None:
    wrong = [field for field, pair in outcomes.items() if not is_as_said(field, *pair)]

    assert not wrong, ", ".join(wrong)


def test_what_is_shown_elsewhere_is_there() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))

    assert [name for name in SHOWN_ELSEWHERE.values() if f"def {name}(" not in tests] == []


def test_every_exception_is_needed() -> None:
    exceptions = [*WITHOUT_EFFECT, *SHOWN_ELSEWHERE]

    assert [each for each in exceptions if not any(re.search(each, f) for f in FIELDS)] == []

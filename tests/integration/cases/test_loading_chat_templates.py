"""Chat templates of every kind that checkpoints bring, and checkpoints that bring none."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.model_pb2 import GetModelRequest, RenderPromptRequest
from antiphon.v1.session_pb2 import ConverseRequest, CreateSessionRequest, OpenSession
from antiphon.v1.types_pb2 import (
    ChatMessage,
    Conversation,
    GenerationConfig,
    Item,
    Prompt,
    Role,
    SamplingParams,
    StopConditions,
)
from structlog.testing import capture_logs
from transformers import PreTrainedTokenizerFast

from antiphon_engine.api.link import EngineLink
from support.answers import ask, ask_in_session
from support.canary import Canary
from support.engine_zygote import forked
from support.failing import refused_call
from support.real_server import scripted_engine, scripted_server
from support.scripted_engine import Script
from support.serve_command import serve_runner
from support.server import RunningServer, details_of
from support.tiny_checkpoints import make_checkpoint
from support.tiny_tokenizers import save_byte_level_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT_S = 60.0
HINT = "no chat template"
CONFIG = GenerationConfig(
    sampling=SamplingParams(temperature=0),
    stop=StopConditions(max_output_tokens=3, ignore_eos=True),
)
SAID = "Is 1 < 2 & 2 > 1? It's “true”, señor."

PLAIN = """\
{% for message in messages %}
    {% if message.role == 'user' %}
<|im_start|>user
{{ message.content }}<|im_end|>
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""
AS_JSON = """\
{% for message in messages %}
  {%- set kept = {'said': message.content, 'by': message.role} %}
  {{ kept | tojson }}
  {{ kept | tojson(indent=2) }}
{% endfor %}
"""
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ESCAPING = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
WRITING = "{% set _ = messages.append(messages[0]) %}{{ messages | length }}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineLink]:
    script = Script(texts={"*": [300, 301, 302]})
    async with scripted_engine(tmp_path_factory.mktemp("engine"), script) as link:
        yield link


@asynccontextmanager
async def serving(
    directory: Path, engine: EngineLink, settings: tuple[str, ...] = ()
) -> AsyncIterator[RunningServer]:
    """Serves the tokenizer in `tokenizer` below the directory, watched by a canary."""
    async with scripted_server(
        directory, directory / "tokenizer", engine, settings=settings
    ) as server:
        canary = await Canary.of(server)
        yield server
        await canary.check()


def conversation(text: str = SAID) -> Prompt:
    message = ChatMessage(role=Role.ROLE_USER, text=text)
    return Prompt(conversation=Conversation(items=[Item(message=message)]))


async def refusals(server: RunningServer) -> list[grpc.aio.AioRpcError]:
    """Returns how every call fails that renders a conversation without a session."""
    request = GenerateRequest(prompt=conversation(), config=CONFIG)
    return [
        await refused_call(server.inference.Generate(request, timeout=LIMIT_S)),
        await refused_call(server.inference.StreamGenerate(request, timeout=LIMIT_S).read()),
        await refused_call(
            server.tokenizer.RenderPrompt(
                RenderPromptRequest(prompt=conversation()), timeout=LIMIT_S
            )
        ),
    ]


async def offers_chat(server: RunningServer) -> bool:
    model = await server.models.GetModel(GetModelRequest(name="models/tiny"), timeout=LIMIT_S)
    return bool(model.capabilities.chat)


async def test_model_without_a_template_says_so_and_completes_text(
    engine: EngineLink, tmp_path: Path
) -> None:
    save_byte_level_tokenizer(tmp_path / "tokenizer", chat_template=None)
    with capture_logs() as logs:
        async with serving(tmp_path, engine) as server:
            failures = await refusals(server)
            create = CreateSessionRequest()
            failures.append(
                await refused_call(server.sessions.CreateSession(create, timeout=LIMIT_S))
            )
            talk = server.sessions.Converse(timeout=LIMIT_S)
            await talk.write(ConverseRequest(open=OpenSession(create=create)))
            failures.append(await refused_call(talk.read()))
            told = await offers_chat(server)
            request = GenerateRequest(prompt=Prompt(text="The harbour lay"), config=CONFIG)
            answer = await ask(server, request)

    assert {failure.code() for failure in failures} == {grpc.StatusCode.FAILED_PRECONDITION}
    reasons = {details_of(failure)["ErrorInfo"].reason for failure in failures}
    assert reasons == {"NO_CHAT_TEMPLATE"}
    assert all("template" in failure.details() for failure in failures)
    assert not told
    assert answer.usage.output_tokens == 3
    warnings = [entry for entry in logs if HINT in entry["event"]]
    assert [entry["log_level"] for entry in warnings] == ["warning"]


def bring(directory: Path, way: str, template: str) -> tuple[str, ...]:
    """Writes a tokenizer that brings a template in one way; returns the settings it takes."""
    other = "{{ raise_exception('the wrong template') }}"
    tokenizer = save_byte_level_tokenizer(
        directory / "tokenizer", chat_template={"settings": template}.get(way, other)
    )
    if way == "file":
        (tokenizer / "chat_template.jinja").write_text(template)
    if way == "option":
        (directory / "mine.jinja").write_text(template)
        return (f"model.chat_template={directory / 'mine.jinja'}",)
    if way == "named":
        path = tokenizer / "tokenizer_config.json"
        named = [
            {"name": "default", "template": template},
            {"name": "tool_use", "template": other},
        ]
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": named}))
    return ()


@pytest.mark.parametrize("template", [PLAIN, AS_JSON], ids=["blocks", "json"])
@pytest.mark.parametrize("way", ["settings", "file", "named", "option"])
async def test_template_is_found_and_renders_byte_for_byte_what_transformers_renders(
    engine: EngineLink, tmp_path: Path, way: str, template: str
) -> None:
    settings = bring(tmp_path, way, template)
    reference = PreTrainedTokenizerFast.from_pretrained(tmp_path / "tokenizer")
    expected = reference.apply_chat_template(
        [{"role": "user", "content": SAID}],
        chat_template=template,
        tokenize=False,
        add_generation_prompt=True,
    )

    async with serving(tmp_path, engine, settings) as server:
        told = await offers_chat(server)
        rendered = await server.tokenizer.RenderPrompt(
            RenderPromptRequest(prompt=conversation()), timeout=LIMIT_S
        )
        config = GenerationConfig.FromString(CONFIG.SerializeToString())
        config.output.prompt_token_ids = True
        answer = await ask(server, GenerateRequest(prompt=conversation(), config=config))
        _, turn = await ask_in_session(server, SAID, CONFIG)

    assert told
    assert rendered.text == expected
    assert list(rendered.token_ids) == reference.encode(expected, add_special_tokens=False)
    assert list(answer.prompt_token_ids) == list(rendered.token_ids)
    assert turn.usage.prompt_tokens == len(rendered.token_ids)


@pytest.mark.parametrize(
    ("template", "told"),
    [(ESCAPING, "__class__"), (WRITING, "append")],
    ids=["escaping", "writing"],
)
async def test_template_that_does_what_it_may_not_fails_its_request_alone(
    engine: EngineLink, tmp_path: Path, template: str, told: str
) -> None:
    save_byte_level_tokenizer(tmp_path / "tokenizer", chat_template=template)
    async with serving(tmp_path, engine) as server:
        failures = await refusals(server)

    check_template_errors(failures, told)


async def test_endless_template_fails_its_request_alone(engine: EngineLink, tmp_path: Path) -> None:
    save_byte_level_tokenizer(tmp_path / "tokenizer", chat_template=ENDLESS)
    async with serving(tmp_path, engine) as server:
        # In one way: each takes the two seconds that it is given.
        request = GenerateRequest(prompt=conversation(), config=CONFIG)
        stream = server.inference.StreamGenerate(request, timeout=LIMIT_S)
        failure = await refused_call(stream.read())

    check_template_errors([failure], "takes too long")


def check_template_errors(failures: list[grpc.aio.AioRpcError], told: str) -> None:
    assert {failure.code() for failure in failures} == {grpc.StatusCode.INVALID_ARGUMENT}
    for failure in failures:
        assert details_of(failure)["ErrorInfo"].reason == "TEMPLATE_ERROR"
        assert told in failure.details()
        assert "subclass" not in failure.details()


async def test_broken_template_ends_the_start_and_is_told_with_its_line(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "tiny")
    save_byte_level_tokenizer(
        checkpoint, chat_template="fine\n{% for m in messages %}\n{% endif %}"
    )
    with serve_runner(tmp_path, checkpoint, engine_command=forked("antiphon_engine")) as runner:
        exit_status, log = runner.run()

    assert exit_status == 2
    assert "Traceback" not in log
    last_line = log.strip().splitlines()[-1]
    assert "chat template (default) is broken in line 3" in last_line

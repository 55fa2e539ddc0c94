"""What can't work is refused at start with the figures that tell why, and nothing asked is ignored.

Starts that fail are told apart from ones that lower a limit: those say so, and serve.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.model_pb2 import GetModelRequest
from antiphon.v1.model_pb2_grpc import ModelServiceStub
from antiphon.v1.session_pb2 import (
    ConverseRequest,
    ConverseResponse,
    CreateSessionRequest,
    OpenSession,
    RunTurnRequest,
    StartTurn,
)
from antiphon.v1.types_pb2 import ChatMessage, GenerationConfig, Item, Prompt, Role
from google.protobuf.message import Message

from support.failing import refused_call
from support.serve_command import Command, Runner
from support.server import RunningServer, details_of
from support.tiny_checkpoints import CONTEXT_TOKENS, TinyModel, make_checkpoint
from support.tiny_runner import tiny_runner
from support.tiny_tokenizers import save_byte_level_tokenizer

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with tiny_runner(tmp_path_factory.mktemp("served")) as made:
        yield made


def settings(*values: str) -> list[str]:
    return [word for value in values for word in ("--set", value)]


def foreign_architecture(directory: Path) -> None:
    change_config(directory, architectures=["FooForCausalLM"], model_type="foo")


def heads_that_do_not_divide(directory: Path) -> None:
    change_config(directory, num_key_value_heads=3)


def longer_than_the_weights_say(directory: Path) -> None:
    change_config(directory, vocab_size=2048)


def change_config(directory: Path, **members: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | members))


FAILING_SETTINGS: dict[str, tuple[list[str], list[str]]] = {
    "cache for less than one request": (
        settings("engine.kv_cache_tokens=64", "engine.max_context_tokens=500"),
        ["needed 16 blocks", "available 2", "largest length that fits: 64"],
    ),
    "cache for less than one block": (
        settings("engine.kv_cache_tokens=16"),
        ["engine.kv_cache_tokens = 16", "needed at least 32 tokens"],
    ),
    "more memory than there is": (
        settings("engine.kv_cache_tokens=0", f"engine.kv_cache_bytes={1 << 49}"),
        ["not enough memory: needed", "available", "largest KV cache that fits:"],
    ),
    "context beyond the model's": (
        settings(f"engine.max_context_tokens={CONTEXT_TOKENS + 1}"),
        [str(CONTEXT_TOKENS + 1), f"at most {CONTEXT_TOKENS}"],
    ),
    "a share of the memory": (
        settings("engine.memory_share=1.5"),
        ["there is no setting 'engine.memory_share'"],
    ),
    "two devices": (
        settings("engine.tensor_parallel_size=2"),
        ["there is no setting 'engine.tensor_parallel_size'"],
    ),
    "a device that is not built": (settings("engine.device=cuda"), ["engine.device", "cpu"]),
    "a misspelt key": (
        settings("engine.max_contxt_tokens=5"),
        ["did you mean engine.max_context_tokens?"],
    ),
}
FAILING_CHECKPOINTS: dict[Callable[[Path], None], list[str]] = {
    foreign_architecture: ["FooForCausalLM", "LlamaForCausalLM", "Qwen2ForCausalLM"],
    heads_that_do_not_divide: ["4 attention heads", "3 key-value heads"],
    longer_than_the_weights_say: ["[1024, 64]", "[2048, 64]"],
}


def assert_told(command: Command, words: list[str]) -> None:
    out, log = command.process.communicate(timeout=LIMIT_S)
    assert command.process.returncode == 2, words
    assert not out
    assert "Traceback" not in log
    last_line = log.strip().splitlines()[-1]
    assert [word for word in words if word not in last_line] == [], last_line


def test_settings_that_can_not_work_are_told_with_figures(runner: Runner) -> None:
    commands = [(runner.start(*flags), words) for flags, words in FAILING_SETTINGS.values()]

    for command, words in commands:
        assert_told(command, words)


def test_misspelt_file_and_environment_are_told_with_the_nearest_name(
    runner: Runner, tmp_path: Path
) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text("[engine]\nmax_contxt_tokens = 100\n")
    by_file = runner.start("--config", str(file))
    by_environment = runner.start(environ=[("ANTIPHON_ENGINE__MAX_CONTXT_TOKENS", "100")])

    assert_told(by_file, [str(file), "did you mean engine.max_context_tokens?"])
    assert_told(by_environment, ["did you mean ANTIPHON_ENGINE__MAX_CONTEXT_TOKENS?"])


def test_checkpoints_that_can_not_work_are_told_with_figures(
    runner: Runner, tmp_path: Path
) -> None:
    commands = []
    for change, words in FAILING_CHECKPOINTS.items():
        directory = shutil.copytree(runner.checkpoint, tmp_path / change.__name__)
        change(directory)
        commands.append((runner.start("--model", str(directory)), words))

    for command, words in commands:
        assert_told(command, words)


def test_foreign_architecture_is_told_before_weights_are_looked_at(
    runner: Runner, tmp_path: Path
) -> None:
    directory = shutil.copytree(runner.checkpoint, tmp_path / "foreign")
    foreign_architecture(directory)
    (directory / "model.safetensors").write_bytes(b"no weights at all")

    assert_told(runner.start("--model", str(directory)), ["FooForCausalLM"])


def test_context_that_nobody_asked_for_is_lowered_to_the_cache_and_that_is_said(
    runner: Runner, tmp_path: Path
) -> None:
    longer = make_checkpoint(tmp_path / "tiny", TinyModel(context_tokens=8 * CONTEXT_TOKENS))
    save_byte_level_tokenizer(longer)
    command = runner.start("--model", str(longer), *settings("engine.kv_cache_tokens=1000"))

    with grpc.insecure_channel(command.read_address()) as channel:
        model = ModelServiceStub(channel).GetModel(
            GetModelRequest(name="models/tiny"), timeout=LIMIT_S
        )
    exit_status, log = command.end()

    assert exit_status == 0
    assert model.limits.context_tokens == 992
    assert model.limits.kv_cache_tokens == 992
    (warning,) = [line for line in log.splitlines() if "context limited" in line]
    assert "context_tokens=992" in warning
    assert f"model_context_tokens={8 * CONTEXT_TOKENS}" in warning


UNKNOWN_FIELD = bytes([0x98, 0x3F, 0x01])
"""Field 1011 with the value 1."""


def with_unknown_field(message: Message) -> Message:
    changed: Message = type(message).FromString(message.SerializeToString() + UNKNOWN_FIELD)
    return changed


def message_item() -> Item:
    return Item(message=ChatMessage(role=Role.ROLE_USER, text="Hi"))


@pytest.mark.asyncio(loop_scope="session")
async def test_option_that_the_server_does_not_know_is_refused_by_its_place(
    tiny: RunningServer,
) -> None:
    config = with_unknown_field(GenerationConfig())
    request = GenerateRequest(prompt=Prompt(text="Go on."), config=config)
    session = (await tiny.sessions.CreateSession(CreateSessionRequest(), timeout=LIMIT_S)).name
    turn = StartTurn(items=[message_item()], config=config)

    failures = {
        "config.1011": [
            await refused_call(tiny.inference.Generate(request, timeout=LIMIT_S)),
            await refused_call(tiny.inference.StreamGenerate(request, timeout=LIMIT_S).read()),
        ],
        "turn.config.1011": [
            await refused_call(
                tiny.sessions.RunTurn(
                    RunTurnRequest(session=session, turn=turn), timeout=LIMIT_S
                ).read()
            )
        ],
        "1011": [
            await refused_call(
                tiny.sessions.CreateSession(
                    with_unknown_field(CreateSessionRequest()), timeout=LIMIT_S
                )
            )
        ],
    }
    talk = tiny.sessions.Converse(timeout=LIMIT_S)
    await talk.write(ConverseRequest(open=OpenSession(name=session)))
    assert (await talk.read()).HasField("opened")
    await talk.write(ConverseRequest(frame_id="f", generate=turn))
    told: ConverseResponse = await talk.read()
    talk.cancel()

    for place, errors in failures.items():
        for error in errors:
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            (violation,) = details_of(error)["BadRequest"].field_violations
            assert violation.field == place
    assert told.rejected.frame_id == "f"
    assert told.rejected.failure.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert [v.field for v in told.rejected.failure.field_violations] == ["generate.config.1011"]

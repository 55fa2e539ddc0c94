"""Models, tokenizer and admin over a real server, in one process with a fake engine."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from antiphon.v1 import admin_pb2, inference_pb2, model_pb2, session_pb2, types_pb2
from google.protobuf.duration_pb2 import Duration
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from antiphon_engine.api.handle import EngineState
from antiphon_server.services.admin import MAX_WATCHERS
from support.failing import refused_call
from support.fake_engine import FakeEngine
from support.server import RunningServer, details_of, running_server


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningServer]:
    async with running_server(tmp_path) as server:
        yield server


async def until_submitted(engine: FakeEngine) -> None:
    while not engine.requests:  # noqa: ASYNC110 - the fake has no event for it
        await asyncio.sleep(0.001)


async def test_model_is_told_by_name_and_in_the_list(running: RunningServer) -> None:
    model = await running.models.GetModel(model_pb2.GetModelRequest(name="models/tiny"))
    listed = await running.models.ListModels(model_pb2.ListModelsRequest())

    assert model == running.model.describe()
    assert model.kernels == {"attention": "fake"}
    assert list(listed.models) == [model]
    assert listed.next_page_token == ""


@pytest.mark.parametrize("name", ["models/other", "tiny", "models/" + "x" * 10_000])
async def test_model_that_is_not_served_is_not_found(running: RunningServer, name: str) -> None:
    error = await refused_call(running.models.GetModel(model_pb2.GetModelRequest(name=name)))

    assert error.code() is grpc.StatusCode.NOT_FOUND
    resource = details_of(error)["ResourceInfo"]
    assert (resource.resource_type, resource.resource_name) == ("antiphon.v1.Model", name[:128])
    assert "models/tiny" in error.details()


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (model_pb2.ListModelsRequest(page_size=1001), "page_size"),
        (model_pb2.ListModelsRequest(page_token="x"), "page_token"),
    ],
)
async def test_bad_page_is_refused_by_field(
    running: RunningServer, request_: model_pb2.ListModelsRequest, field: str
) -> None:
    error = await refused_call(running.models.ListModels(request_))

    assert details_of(error)["BadRequest"].field_violations[0].field == field


async def test_text_and_tokens_turn_into_each_other(running: RunningServer) -> None:
    text = "Hello 世界 <|im_end|> 👩‍👩‍👧"

    tokens = await running.tokenizer.Tokenize(model_pb2.TokenizeRequest(text=text))
    back = await running.tokenizer.Detokenize(
        model_pb2.DetokenizeRequest(token_ids=tokens.token_ids)
    )

    assert back.text == text


async def test_special_tokens_are_read_only_where_allowed(running: RunningServer) -> None:
    plain = await running.tokenizer.Tokenize(model_pb2.TokenizeRequest(text="<|im_end|>"))
    special = await running.tokenizer.Tokenize(
        model_pb2.TokenizeRequest(text="<|im_end|>", allow_special_tokens=True)
    )

    assert len(special.token_ids) == 1
    assert special.token_ids[0] not in plain.token_ids


async def test_token_beyond_the_vocabulary_is_refused_by_its_place(running: RunningServer) -> None:
    error = await refused_call(
        running.tokenizer.Detokenize(model_pb2.DetokenizeRequest(token_ids=[5, 1024, 7]))
    )

    (violation,) = details_of(error)["BadRequest"].field_violations
    assert violation.field == "token_ids[1]"
    assert "1024" in violation.description


async def test_prompt_is_rendered_as_the_model_gets_it(running: RunningServer) -> None:
    message = types_pb2.ChatMessage(role=types_pb2.ROLE_USER, text="Hi")
    conversation = types_pb2.Conversation(items=[types_pb2.Item(message=message)])

    rendered = await running.tokenizer.RenderPrompt(
        model_pb2.RenderPromptRequest(prompt=types_pb2.Prompt(conversation=conversation))
    )

    assert rendered.text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert rendered.token_ids


async def test_prompt_of_token_ids_is_rendered_with_its_text(running: RunningServer) -> None:
    token_ids = running.model.tokenizer.encode(
        "one two<|im_end|>", add_special_tokens=False, allow_special_tokens=True
    )
    prompt = types_pb2.Prompt(token_ids=types_pb2.TokenIds(ids=token_ids))

    rendered = await running.tokenizer.RenderPrompt(model_pb2.RenderPromptRequest(prompt=prompt))

    assert (rendered.text, list(rendered.token_ids)) == ("one two<|im_end|>", token_ids)


async def test_text_that_no_message_holds_is_refused_before_it_is_sent(
    running: RunningServer,
) -> None:
    token_bytes = running.model.tokenizer.token_bytes
    longest = max(range(1000), key=lambda token_id: len(token_bytes(token_id)))
    length = len(token_bytes(longest))
    token_ids = [longest] * ((3 << 20) // length + 1)

    error = await refused_call(
        running.tokenizer.Detokenize(model_pb2.DetokenizeRequest(token_ids=token_ids))
    )

    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert details_of(error)["ErrorInfo"].reason == "RESPONSE_TOO_LARGE"


async def test_server_tells_release_settings_and_start(running: RunningServer) -> None:
    info = await running.admin.GetServerInfo(admin_pb2.GetServerInfoRequest())

    assert info.version
    assert info.settings["model.name"] == '"tiny"'
    assert info.start_time.seconds > 0
    assert not info.draining


async def test_stats_are_the_engines(running: RunningServer) -> None:
    await running.inference.Generate(
        inference_pb2.GenerateRequest(
            prompt=types_pb2.Prompt(text="Hi"),
            config=types_pb2.GenerationConfig(
                stop=types_pb2.StopConditions(max_output_tokens=3, ignore_eos=True)
            ),
        )
    )
    await running.sessions.CreateSession(session_pb2.CreateSessionRequest())

    stats = await running.admin.GetEngineStats(admin_pb2.GetEngineStatsRequest())

    assert isinstance(running.engine, FakeEngine)
    assert stats.model == "models/tiny"
    assert stats.step == running.engine.num_steps > 0
    assert stats.num_blocks == 128
    assert stats.num_sessions == 1
    assert stats.latencies.num_requests == 1
    assert stats.latencies.time_to_first_token.p50.ToNanoseconds() > 0
    assert stats.latencies.HasField("time_per_output_token")
    assert stats.start_time.seconds <= stats.sample_time.seconds


async def test_stats_are_watched_at_the_interval_asked_for(running: RunningServer) -> None:
    watch = running.admin.WatchEngineStats(
        admin_pb2.WatchEngineStatsRequest(interval=Duration(nanos=10_000_000))
    )

    samples = [await watch.read() for _ in range(3)]
    watch.cancel()

    times = [sample.sample_time.ToNanoseconds() for sample in samples]
    assert times == sorted(set(times))


async def test_watchers_of_the_stats_are_bounded_and_leave_their_places(
    running: RunningServer,
) -> None:
    watches = [
        running.admin.WatchEngineStats(admin_pb2.WatchEngineStatsRequest())
        for _ in range(MAX_WATCHERS)
    ]
    for watch in watches:
        await watch.read()

    error = await refused_call(
        running.admin.WatchEngineStats(admin_pb2.WatchEngineStatsRequest()).read()
    )
    for watch in watches:
        watch.cancel()

    assert details_of(error)["ErrorInfo"].reason == "OVERLOADED"
    async with asyncio.timeout(60):
        while True:
            try:
                await running.admin.WatchEngineStats(admin_pb2.WatchEngineStatsRequest()).read()
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("interval", [Duration(), Duration(nanos=9_999_999), Duration(seconds=-1)])
async def test_too_short_interval_is_refused_by_field(
    running: RunningServer, interval: Duration
) -> None:
    watch = running.admin.WatchEngineStats(admin_pb2.WatchEngineStatsRequest(interval=interval))

    error = await refused_call(watch.read())

    assert details_of(error)["BadRequest"].field_violations[0].field == "interval"


async def test_prefix_cache_is_flushed(running: RunningServer) -> None:
    await running.inference.Generate(
        inference_pb2.GenerateRequest(
            prompt=types_pb2.Prompt(token_ids=types_pb2.TokenIds(ids=range(1, 100))),
            config=types_pb2.GenerationConfig(stop=types_pb2.StopConditions(max_output_tokens=1)),
        )
    )

    first = await running.admin.FlushPrefixCache(admin_pb2.FlushPrefixCacheRequest())
    second = await running.admin.FlushPrefixCache(admin_pb2.FlushPrefixCacheRequest())

    assert (first.num_blocks, second.num_blocks) == (3, 0)


async def test_admin_answers_while_the_server_drains(running: RunningServer) -> None:
    await running.server.draining.drain(0)

    info = await running.admin.GetServerInfo(admin_pb2.GetServerInfoRequest())
    error = await refused_call(running.models.ListModels(model_pb2.ListModelsRequest()))

    assert info.draining
    assert details_of(error)["ErrorInfo"].reason == "DRAINING"


async def test_dead_engine_is_told_by_calls_and_health(running: RunningServer) -> None:
    assert isinstance(running.engine, FakeEngine)
    running.engine.set_state(EngineState.DOWN)

    error = await refused_call(running.admin.GetEngineStats(admin_pb2.GetEngineStatsRequest()))

    assert details_of(error)["ErrorInfo"].reason == "ENGINE_DOWN"
    assert not running.server.supervision.serving


@pytest.mark.parametrize(
    ("channel", "own"),
    [
        ("channel", {"InferenceService", "SessionService", "ModelService", "TokenizerService"}),
        ("admin_channel", {"AdminService"}),
    ],
)
async def test_reflection_lists_the_services_of_the_port(
    running: RunningServer, channel: str, own: set[str]
) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(getattr(running, channel))
    request = reflection_pb2.ServerReflectionRequest(list_services="")

    async for answer in stub.ServerReflectionInfo(iter([request])):
        names = {service.name for service in answer.list_services_response.service}

    assert names == {f"antiphon.v1.{name}" for name in own} | {
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


async def test_message_over_the_bound_is_refused_with_both_sizes(tmp_path: Path) -> None:
    async with running_server(tmp_path, settings=["server.max_message_bytes=128KiB"]) as running:
        request = inference_pb2.GenerateRequest(prompt=types_pb2.Prompt(text="x" * (256 << 10)))

        error = await refused_call(running.inference.Generate(request))
        under = await refused_call(
            running.inference.Generate(
                inference_pb2.GenerateRequest(prompt=types_pb2.Prompt(text="x y" * 30_000))
            )
        )

    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(request.ByteSize()) in error.details()
    assert str(128 << 10) in error.details()
    assert details_of(under)["ErrorInfo"].reason == "CONTEXT_LENGTH_EXCEEDED"


async def test_running_call_ends_by_itself_when_the_server_closes_in_time(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with running_server(tmp_path, engine=engine) as running:
        engine.hold()
        call = running.inference.Generate(
            inference_pb2.GenerateRequest(
                prompt=types_pb2.Prompt(text="Hi"),
                config=types_pb2.GenerationConfig(
                    stop=types_pb2.StopConditions(max_output_tokens=2, ignore_eos=True)
                ),
            )
        )
        await until_submitted(engine)

        closing = asyncio.create_task(running.server.close(30))
        await asyncio.sleep(0)
        engine.release()

        assert (await call).usage.output_tokens == 2
        assert await closing == 0


async def test_running_call_is_cut_off_at_the_limit(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with running_server(tmp_path, engine=engine) as running:
        engine.hold()
        call = running.inference.Generate(
            inference_pb2.GenerateRequest(prompt=types_pb2.Prompt(text="Hi"))
        )
        await until_submitted(engine)

        num_cut_off = await running.server.close(0.05)

        assert num_cut_off == 1
        assert (await refused_call(call)).code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.CANCELLED,
        )
        assert engine.requests[0].cancel_asked


async def test_turn_whose_stream_has_left_may_end_before_the_server_does(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with running_server(tmp_path, engine=engine) as running:
        engine.hold()
        name = (await running.sessions.CreateSession(session_pb2.CreateSessionRequest())).name
        message = types_pb2.ChatMessage(role=types_pb2.ROLE_USER, text="Hi")
        turn = session_pb2.StartTurn(
            turn_id="t",
            items=[types_pb2.Item(message=message)],
            config=types_pb2.GenerationConfig(
                stop=types_pb2.StopConditions(max_output_tokens=3, ignore_eos=True)
            ),
        )
        call = running.sessions.RunTurn(session_pb2.RunTurnRequest(session=name, turn=turn))
        await until_submitted(engine)
        call.cancel()
        await running.server.supervision.wait_idle(60)

        closing = asyncio.create_task(running.server.close(30))
        await asyncio.wait({closing}, timeout=0.2)
        engine.release()

        assert await closing == 0

    async with running_server(tmp_path, checkpoint=tmp_path / "tokenizer") as running:
        ended = await running.sessions.GetTurn(session_pb2.GetTurnRequest(name=f"{name}/turns/t"))
    assert ended.state == session_pb2.Turn.STATE_COMPLETED
    assert ended.usage.output_tokens == 3


async def test_idle_stream_is_sent_away_and_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with running_server(tmp_path) as running:
        stream = running.sessions.Converse()
        opening = session_pb2.OpenSession(create=session_pb2.CreateSessionRequest())
        await stream.write(session_pb2.ConverseRequest(open=opening))
        opened = await stream.read()

        closing = asyncio.create_task(running.server.close(60))
        told = await stream.read()
        error = await refused_call(stream.read())

        assert opened.HasField("opened")
        assert told.go_away.reason == types_pb2.GoAway.REASON_DRAINING
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert details_of(error)["ErrorInfo"].reason == "DRAINING"
        assert await asyncio.wait_for(closing, 60) == 0

import asyncio

import grpc
import pytest
from antiphon.v1 import inference_pb2, inference_pb2_grpc, model_pb2, model_pb2_grpc, types_pb2
from google.rpc import error_details_pb2

from antiphon_client import (
    Cancelled,
    Client,
    ClientOptions,
    DeadlineExceeded,
    RetryPolicy,
    raw_text,
    raw_tokens,
    system,
    user,
)
from support.scripted_services import refuse, serving

Event = inference_pb2.StreamGenerateResponse
Delta = types_pb2.Delta
CONTENT = types_pb2.OUTPUT_CHANNEL_CONTENT


class Scripted(inference_pb2_grpc.InferenceServiceServicer):
    """Streams the given events, then waits for ever if told so; counts what was asked."""

    def __init__(self, *events, hang=False):
        self.events, self.hang = events, hang
        self.requests = []
        self.ended = asyncio.Event()

    async def StreamGenerate(self, request, context):
        self.requests.append(request)
        context.add_done_callback(lambda _: self.ended.set())
        for event in self.events:
            yield event
        if self.hang:
            await asyncio.sleep(60)

    async def Generate(self, request, context):
        self.requests.append(request)
        return inference_pb2.GenerateResponse(outputs=[types_pb2.Output(text="hi")])


STORY = (
    Event(started=types_pb2.GenerationStarted(prompt_tokens=4, seed=9)),
    Event(delta=Delta(channel=CONTENT, text="Once ")),
    Event(delta=Delta(channel=types_pb2.OUTPUT_CHANNEL_REASONING, text="hm")),
    Event(delta=Delta(channel=CONTENT, output_index=1, text="Twice")),
    Event(delta=Delta(channel=CONTENT, text="upon")),
    Event(output_finished=inference_pb2.OutputFinished(finish_reason=1)),
    Event(completed=inference_pb2.GenerationCompleted(usage=types_pb2.Usage(output_tokens=2))),
)


async def test_text_is_the_content_of_one_output():
    async with serving(inference=Scripted(*STORY)) as target, Client(target) as client:
        stream = client.stream_generate("tell")
        text = [piece async for piece in stream.text()]

    assert text == ["Once ", "upon"]
    assert stream.started.seed == 9
    assert stream.finished[0].finish_reason == types_pb2.FINISH_REASON_STOP
    assert stream.completed.usage.output_tokens == 2


async def test_events_come_in_order():
    async with serving(inference=Scripted(*STORY)) as target, Client(target) as client:
        events = [event async for event in client.stream_generate("tell")]

    assert events == list(STORY)


async def test_leaving_a_stream_early_cancels_the_call():
    servicer = Scripted(*STORY[:2], hang=True)
    async with serving(inference=servicer) as target, Client(target) as client:
        async with client.stream_generate("tell") as stream:
            async for _ in stream.text():
                break

        await asyncio.wait_for(servicer.ended.wait(), 60)


async def test_the_reader_of_a_cancelled_stream_gets_an_error_and_no_cancellation_of_its_own():
    async with serving(inference=Scripted(hang=True)) as target, Client(target) as client:
        stream = client.stream_generate("tell")
        asyncio.get_running_loop().call_later(0.05, stream.cancel)

        with pytest.raises(Cancelled):
            async for _ in stream:
                pass


async def test_a_stream_ends_at_its_time_limit():
    async with serving(inference=Scripted(hang=True)) as target, Client(target) as client:
        with pytest.raises(DeadlineExceeded):
            async for _ in client.stream_generate("tell", timeout_s=0.1):
                pass


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", types_pb2.Prompt(conversation=types_pb2.Conversation(items=[user("hi")]))),
        (
            [system("be brief"), user("hi")],
            types_pb2.Prompt(
                conversation=types_pb2.Conversation(items=[system("be brief"), user("hi")])
            ),
        ),
        (raw_text("hi"), types_pb2.Prompt(text="hi")),
        (raw_tokens([1, 2]), types_pb2.Prompt(token_ids=types_pb2.TokenIds(ids=[1, 2]))),
    ],
)
async def test_prompts_are_sent_as_they_are_meant(prompt, expected):
    servicer = Scripted()
    config = types_pb2.GenerationConfig(sampling=types_pb2.SamplingParams(temperature=0))

    async with serving(inference=servicer) as target, Client(target) as client:
        answer = await client.generate(prompt, config, model="models/m", num_outputs=2)

    assert answer.outputs[0].text == "hi"
    assert servicer.requests == [
        inference_pb2.GenerateRequest(
            model="models/m", prompt=expected, config=config, num_outputs=2
        )
    ]


class FullAtFirst(inference_pb2_grpc.InferenceServiceServicer):
    """Refuses as overloaded until it was asked so many times."""

    def __init__(self, num_refusals):
        self.num_refusals, self.num_calls = num_refusals, 0

    async def Generate(self, request, context):
        self.num_calls += 1
        if self.num_calls <= self.num_refusals:
            info = error_details_pb2.ErrorInfo(reason="OVERLOADED")
            await refuse(context, grpc.StatusCode.UNAVAILABLE, "full", info)
        return inference_pb2.GenerateResponse()


async def test_an_overloaded_server_is_asked_again():
    servicer = FullAtFirst(2)
    options = ClientOptions(retry=RetryPolicy(first_delay_s=0.01))

    async with serving(inference=servicer) as target, Client(target, options) as client:
        await client.generate("hi")

    assert servicer.num_calls == 3


class Paged(model_pb2_grpc.ModelServiceServicer):
    async def ListModels(self, request, context):
        number = int(request.page_token or 0)
        return model_pb2.ListModelsResponse(
            models=[model_pb2.Model(name=f"models/{number}")],
            next_page_token=str(number + 1) if number < 2 else "",
        )


async def test_lists_are_read_over_all_pages():
    async with serving(models=Paged()) as target, Client(target) as client:
        names = [model.name async for model in client.list_models()]

    assert names == ["models/0", "models/1", "models/2"]

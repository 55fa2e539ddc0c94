"""Timings tell what the engine has stamped of a request."""

from antiphon.v1 import types_pb2
from antiphon.v1.inference_pb2 import GenerationCompleted
from antiphon.v1.types_pb2 import GenerationConfig, StopConditions

from antiphon_engine.api.request_times import RequestTimes, Rest
from antiphon_server.offload import Offload
from antiphon_server.request_facts import RequestFacts
from support.fake_engine import FakeEngine
from support.generations import Bench
from support.served_models import TextSide, served_model


async def test_timings_tell_how_the_prompt_was_computed(text: TextSide, offload: Offload) -> None:
    engine = FakeEngine(step_interval_s=0.005)
    bench = Bench.of(served_model(text, engine), offload)

    _, events = await bench.run(GenerationConfig(stop=StopConditions(max_output_tokens=4)))

    completed = events[-1]
    assert isinstance(completed, GenerationCompleted)
    timings, [chunk] = completed.timings, completed.timings.prefill_chunks
    assert timings.preparation.ToNanoseconds() <= timings.queue.ToNanoseconds()
    assert chunk.start == timings.queue
    assert chunk.duration == timings.prefill
    assert chunk.num_tokens == completed.usage.prompt_tokens
    assert (chunk.step, chunk.num_steps, chunk.batch_size) == (1, 1, 1)
    assert (timings.mean_batch_size, timings.max_batch_size) == (1.0, 1)
    assert not timings.rests
    assert not timings.HasField("grammar_wait")


def test_timings_tell_of_rests_and_reuse() -> None:
    facts = RequestFacts(first_step_ns=200, first_token_ns=300, last_token_ns=900, num_steps=4)
    facts.times = RequestTimes(
        arrival_ns=150,
        grammar_wait_ns=30,
        num_steps=4,
        num_preemptions=1,
        num_rests=20,
        rest_ns=70,
        num_batch_rows=10,
        max_batch_rows=3,
        num_device_reused=32,
        num_host_reused=16,
        num_recomputed=5,
        rests=[
            Rest(start_ns=400, end_ns=420, held=True),
            Rest(start_ns=500, end_ns=550, held=False),
        ],
    )

    timings = facts.timings(received_ns=100)

    assert timings.preparation.ToNanoseconds() == 50
    assert timings.grammar_wait.ToNanoseconds() == 30
    assert [
        (rest.start.ToNanoseconds(), rest.duration.ToNanoseconds(), rest.reason)
        for rest in timings.rests
    ] == [
        (300, 20, types_pb2.Rest.REASON_HELD),
        (400, 50, types_pb2.Rest.REASON_PREEMPTED),
    ]
    assert (timings.num_rests, timings.rest.ToNanoseconds()) == (20, 70)
    assert (timings.mean_batch_size, timings.max_batch_size) == (2.5, 3)
    assert (timings.device_reused_tokens, timings.host_reused_tokens) == (32, 16)
    assert timings.recomputed_tokens == 5

"""Runs generations against a fake engine, and checks what every stream of events must keep to."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from antiphon.v1.inference_pb2 import GenerationCompleted, OutputFinished
from antiphon.v1.types_pb2 import Delta, GenerationConfig, GenerationStarted

from antiphon_server.endurance import Endurance
from antiphon_server.generation import Event, Generation
from antiphon_server.generation_output import NewTokens
from antiphon_server.generation_spec import GenerationSpec
from antiphon_server.generator import Generator
from antiphon_server.offload import Offload
from antiphon_server.served_model import ServedModel
from antiphon_server.validation import resolve_config


@dataclass(frozen=True, slots=True)
class Bench:
    """Starts generations of one model."""

    model: ServedModel
    generator: Generator

    @classmethod
    def of(cls, model: ServedModel, offload: Offload) -> "Bench":
        return cls(model, Generator(model, offload=offload))

    def start(
        self,
        config: GenerationConfig | None = None,
        *,
        prompt_ids: Sequence[int] = (1, 2, 3),
        num_outputs: int = 1,
        deadline_s: float | None = None,
        resumed: NewTokens | None = None,
        endurance: Endurance | None = None,
    ) -> Generation:
        now_ns = time.monotonic_ns()
        resolved = resolve_config(
            config or GenerationConfig(),
            model=self.model,
            prompt_tokens=len(prompt_ids),
            num_outputs=num_outputs,
            path="config",
            draw_seed=lambda: 7,
        )
        return self.generator.start(
            GenerationSpec(
                prompt_ids=prompt_ids,
                config=resolved,
                num_outputs=num_outputs,
                received_ns=now_ns,
                deadline_ns=None if deadline_s is None else now_ns + round(deadline_s * 1e9),
                resumed=resumed or NewTokens(),
                endurance=endurance,
            )
        )

    async def run(
        self, config: GenerationConfig | None = None, *, num_outputs: int = 1
    ) -> tuple[Generation, list[Event]]:
        """Runs one to its end and checks its events."""
        generation = self.start(config, num_outputs=num_outputs)
        events = [event async for event in generation.events()]
        check_events(events, num_outputs)
        return generation, events


def deltas_of(events: Iterable[object], output_index: int = 0) -> list[Delta]:
    return [e for e in events if isinstance(e, Delta) and e.output_index == output_index]


def text_of(events: Iterable[object], output_index: int = 0) -> str:
    return "".join(delta.text for delta in deltas_of(events, output_index))


def finish_of(events: Iterable[object], output_index: int = 0) -> OutputFinished:
    (finish,) = (
        e for e in events if isinstance(e, OutputFinished) and e.output_index == output_index
    )
    return finish


def check_events(events: Sequence[object], num_outputs: int) -> None:
    """Checks a whole stream: its order, its one end, and that nothing in it is empty."""
    assert isinstance(events[0], GenerationStarted)
    assert isinstance(events[-1], GenerationCompleted)
    finished: set[int] = set()
    for event in events[1:-1]:
        if isinstance(event, Delta):
            assert event.output_index not in finished
            assert event.text or event.token_ids or event.logprobs
        else:
            assert isinstance(event, OutputFinished)
            assert event.output_index not in finished
            assert event.finish_reason
            finished.add(event.output_index)
    assert finished == set(range(num_outputs))

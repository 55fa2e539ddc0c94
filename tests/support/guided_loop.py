"""An engine loop whose scripted model has a tokenizer, so that grammars hold for its outputs."""

import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.grammar import Grammar, Thinking
from antiphon_engine.api.messages import (
    FinishReason,
    GenerationRequest,
    RequestFailed,
    SamplingParams,
    StopParams,
)
from antiphon_engine.grammar.backends import Backends
from support.grammar_walks import split
from support.loop_harness import LoopHarness, running_loop_of
from support.scripted_engine import Script, load_scripted

VOCABULARY_SIZE = 1024
"""Padded beyond the tokenizer's 1,000."""
_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidedModel:
    """A vocabulary with the ids that tests speak of."""

    checkpoint: Path
    backends: Backends

    @classmethod
    def of(cls, checkpoint: Path) -> "GuidedModel":
        """Returns the model of a directory with a tokenizer."""
        return cls(
            checkpoint=checkpoint,
            backends=Backends.load(checkpoint, vocabulary_size=VOCABULARY_SIZE),
        )

    @property
    def end_id(self) -> int:
        """Ends outputs."""
        return self.backends.vocabulary.tokens.index(b"<|im_end|>")

    def ids(self, text: str) -> list[int]:
        """Returns ids that spell a text."""
        return split(self.backends, text)

    def text(self, token_ids: Sequence[int]) -> str:
        """Returns the text of ids, the end of an output left out."""
        tokens = self.backends.vocabulary.tokens
        return b"".join(tokens[i] for i in token_ids if i != self.end_id).decode()

    def request(
        self,
        grammar: Grammar | None,
        *,
        thinking: Thinking | None = None,
        stop: StopParams | None = None,
        sampling: SamplingParams | None = None,
        prompt: Sequence[int] = (5, 6, 7),
    ) -> GenerationRequest:
        """A guided request, greedy and of at most 60 tokens unless told otherwise."""
        stop = stop or StopParams(max_output_tokens=60, end_ids=(self.end_id,))
        return GenerationRequest(
            prompt=array("i", prompt).tobytes(),
            sampling=sampling or SamplingParams(seed=7, temperature=0.0),
            stop=stop,
            grammar=grammar,
            thinking=thinking,
        )

    @contextmanager
    def running(
        self,
        wanted: str | Sequence[int] = "",
        config: EngineConfig | None = None,
        *,
        backends: Backends | None = None,
    ) -> Iterator[LoopHarness]:
        """A loop whose model wants to say a text, over and over its last token.

        Args:
            wanted: The text.
            config: How it runs.
            backends: What compiles its grammars; None: the model's, which all its loops share.
        """
        text = self.ids(wanted) if isinstance(wanted, str) else list(wanted)
        config = config or EngineConfig()
        script = Script(texts={"*": text or [self.end_id]}, vocabulary_size=VOCABULARY_SIZE)
        with running_loop_of(
            load_scripted(script, config),
            config,
            checkpoint=str(self.checkpoint),
            backends=backends or self.backends,
        ) as harness:
            yield harness


def run_to_ends(harness: LoopHarness, requests: dict[int, GenerationRequest]) -> None:
    """Submits requests and runs the loop until each has ended or failed."""
    for request_id, request in requests.items():
        harness.submit(request_id, request)
    run_until_ended(harness, requests)


def run_until_ended(harness: LoopHarness, requests: dict[int, GenerationRequest]) -> None:
    """Runs the loop until requests that were submitted have ended or failed."""
    wanted = {
        (request_id, output_index)
        for request_id, request in requests.items()
        for output_index in range(request.num_outputs)
    }
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        over = {key for key in wanted if key in harness.heard.ended or harness.heard.failed[key[0]]}
        if over == wanted:
            return
        assert time.monotonic() < deadline, f"{wanted - over} have not ended"
        harness.step_or_wait()


def only_failure(harness: LoopHarness, request_id: int) -> RequestFailed:
    """Returns the one failure of a request."""
    (failed,) = harness.heard.failed[request_id]
    return failed


def reason(harness: LoopHarness, request_id: int, output_index: int = 0) -> FinishReason:
    """Returns why an output ended."""
    (ended,) = harness.heard.ended[request_id, output_index]
    return ended.reason


def ahead(num_steps: int) -> EngineConfig:
    """Settings under which so many steps are launched ahead."""
    return replace(EngineConfig(), run_ahead=num_steps)

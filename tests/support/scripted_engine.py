"""An engine whose model says what a script says; loop, core, sampler and link are the real ones.

`write_script` returns the command that runs it; `EngineLink.start` takes that. Also to be run as
`python -m support.scripted_engine --script FILE` with `tests` on PYTHONPATH.
"""

import argparse
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_engine import _native
from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.linked_process import link_of_this_process, read_start
from antiphon_engine.api.process import EngineStart
from antiphon_engine.device import CPU
from antiphon_engine.engine_process import LoadedModel, ModelFacts, OnProgress, run_engine
from antiphon_engine.logs import configure_logging
from antiphon_engine.prompt_scores import ScoredTokens, TokenScores, score_tokens
from antiphon_engine.step_executor import StepBuffers, make_buffers
from antiphon_engine.watchdog import end_with_front_end

WANTED_LOGIT = 20.0
ANY_END = "any"
NOISE = 0.5
"""Logits of tokens that are not wanted lie within this of 0."""

_DEFAULT_KV_CACHE_TOKENS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What the model wants to say, and what goes wrong."""

    texts: dict[str, list[int]] = field(default_factory=lambda: {"*": [0]})
    """By the prompt's last token id, or "*": the wanted token ids. The last is wanted for ever."""
    texts_folder: str = ""
    """Where files that are named for the prompt's last token id hold texts that go before those
    above, as JSON; `ANY_END` holds what goes for the others. They are read as prompts come, so
    tests can write them at any time."""
    vocabulary_size: int = 1024
    context_tokens: int = 512
    step_delay_s: float = 0.0
    """Every step takes at least this long."""
    freeze_on: dict[str, float] = field(default_factory=dict)
    """By the prompt's last token id: its first step takes this many seconds."""
    die_on: list[int] = field(default_factory=list)
    """Prompts that end in one of these kill the process."""
    raise_on: list[int] = field(default_factory=list)
    """Prompts that end in one of these make the step fail."""
    load_delay_s: float = 0.0
    load_failure: str = ""
    """Loading fails with this, where it isn't empty."""


def write_script(path: Path, script: Script) -> list[str]:
    """Writes `script` to a file and returns the command that runs an engine by it."""
    path.write_bytes(msgspec.json.encode(script))
    return [sys.executable, str(Path(__file__)), "--script", str(path)]


@dataclass(frozen=True, slots=True)
class Speaker:
    """A request's output: the last token of its prompt, and what it wants to say."""

    end: int
    text: list[int]


class ScriptedExecutor:
    """A StepExecutor that computes nothing."""

    def __init__(self, script: Script, config: EngineConfig) -> None:
        self._script = script
        max_blocks = -(-script.context_tokens // config.block_tokens)
        self._sets = [
            make_buffers(config, max_blocks=max_blocks) for _ in range(config.num_buffer_sets)
        ]
        self._tokens: list[NDArray[np.int32] | None] = [None] * config.num_buffer_sets
        """What steps that are launched and not waited for have sampled."""
        self._speakers: dict[int, Speaker] = {}
        """By the place of a core request, the low half of its handle."""
        noise = np.random.default_rng(0).uniform(-NOISE, NOISE, 2 * script.vocabulary_size)
        self._noise = noise.astype(np.float32)
        self.num_steps = 0

    def buffers(self, set_index: int) -> StepBuffers:
        return self._sets[set_index]

    def execute(self, set_index: int) -> torch.Tensor:
        self.num_steps += 1
        time.sleep(self._script.step_delay_s)
        plan = self._sets[set_index]
        num_rows = int(plan["header"][_native.HEADER_NUM_ROWS])
        rows = np.nonzero(np.diff(plan["sample_indptr"][: num_rows + 1]))[0]
        logits = np.empty((len(rows), self._script.vocabulary_size), np.float32)
        for i, row in enumerate(rows):
            place, position = int(plan["handle"][row]) & 0xFFFFFFFF, plan["output_position"][row]
            # After a pause a request's output is computed again, as if it were prompt.
            if plan["flags"][row] & _native.FLAG_PREFILL and position == 0:
                end = int(plan["input_ids"][plan["cu_q"][row + 1] - 1])
                self._speakers[place] = Speaker(end, self._text_behind(end))
                self._misbehave(end)
            logits[i] = self._logits(self._speakers[place], int(position))
        return torch.from_numpy(logits)

    def overlapped_ns(self, set_index: int) -> int:
        return 0

    def likeliest(self, set_index: int) -> torch.Tensor | None:
        return None

    def score(self, set_index: int, scored: ScoredTokens) -> TokenScores:
        ids = self._sets[set_index]["input_ids"]
        return score_tokens(
            lambda places: self._foretold(ids[places.numpy()]),
            scored,
            vocabulary_size=self._script.vocabulary_size,
            device=CPU,
        )

    def _foretold(self, ids: NDArray[np.int32]) -> torch.Tensor:
        """What each token of a prompt makes of the next one: it goes by its id alone."""
        return torch.stack([self.logits_behind(int(token_id)) for token_id in ids])

    def logits_behind(self, token_id: int) -> torch.Tensor:
        """Logits [V] of what follows a token of a prompt."""
        size = self._script.vocabulary_size
        start = 31 * token_id % size
        return torch.from_numpy(self._noise[start : start + size])

    def store_tokens(self, set_index: int, tokens: torch.Tensor) -> None:
        assert self._tokens[set_index] is None, "the set's last step has not been waited for"
        self._tokens[set_index] = tokens.numpy()

    def wait(self, set_index: int) -> None:
        plan, tokens = self._sets[set_index], self._tokens[set_index]
        assert tokens is not None, "the set's step is not launched"
        num_rows = int(plan["header"][_native.HEADER_NUM_ROWS])
        num_samples = np.diff(plan["sample_indptr"][: num_rows + 1])
        plan["num_tokens"][:num_rows] = num_samples
        plan["tokens"][np.nonzero(num_samples)[0], 0] = tokens
        self._tokens[set_index] = None

    def _text_behind(self, end: int) -> list[int]:
        folder = Path(self._script.texts_folder)
        for path in (folder / str(end), folder / ANY_END):
            if self._script.texts_folder and path.exists():
                return msgspec.json.decode(path.read_bytes(), type=list[int])
        return self._script.texts.get(str(end), self._script.texts.get("*", [0]))

    def _logits(self, speaker: Speaker, position: int) -> NDArray[np.float32]:
        start = (31 * position + 7 * speaker.end) % self._script.vocabulary_size
        logits = self._noise[start : start + self._script.vocabulary_size].copy()
        logits[speaker.text[min(position, len(speaker.text) - 1)]] = WANTED_LOGIT
        return logits

    def _misbehave(self, end: int) -> None:
        time.sleep(self._script.freeze_on.get(str(end), 0.0))
        if end in self._script.die_on:
            os.kill(os.getpid(), signal.SIGKILL)
        if end in self._script.raise_on:
            raise RuntimeError("the script says so")


def load_scripted(script: Script, config: EngineConfig) -> LoadedModel:
    """Returns the script as a model."""
    num_tokens = config.kv_cache_tokens or _DEFAULT_KV_CACHE_TOKENS
    return LoadedModel(
        executor=ScriptedExecutor(script, config),
        facts=ModelFacts(
            architecture="ScriptedForCausalLM",
            dtype="float32",
            quantization="",
            kv_cache_dtype="float32",
            kernels={},
            vocabulary_size=script.vocabulary_size,
            context_tokens=config.max_context_tokens or script.context_tokens,
            num_blocks=num_tokens // config.block_tokens + 1,
            num_host_blocks=config.host_cache_bytes // (4 * config.block_tokens),
        ),
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--script", type=Path, required=True)
    arguments, rest = parser.parse_known_args()
    script = msgspec.json.decode(arguments.script.read_bytes(), type=Script)
    link = link_of_this_process(rest)
    end_with_front_end(link)
    start = read_start(sys.stdin.buffer, EngineStart)
    logging = start.surroundings.logging
    configure_logging(sys.stderr, level=logging.level, as_json=logging.as_json)

    def load(start: EngineStart, on_progress: OnProgress) -> LoadedModel:
        on_progress("weights", 0, 1)
        time.sleep(script.load_delay_s)
        if script.load_failure:
            raise StartupError(script.load_failure)
        on_progress("weights", 1, 1)
        return load_scripted(script, start.config)

    return run_engine(start, link, load)


if __name__ == "__main__":
    sys.exit(main())

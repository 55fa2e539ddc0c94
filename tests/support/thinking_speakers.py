"""A scripted model that thinks, under a tokenizer of the engine's own: for constraints on text."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import tokenizers
from antiphon.v1.types_pb2 import (
    Choice,
    Constraint,
    GenerationConfig,
    OutputOptions,
    SamplingParams,
    StopConditions,
)

from support.canary import Canary
from support.chat_templates import THINKING
from support.forced_texts import VOCABULARY_SIZE, Speaker, silent_ids
from support.real_server import scripted_engine, scripted_server
from support.scripted_engine import Script
from support.tiny_tokenizers import VOCABULARY_SIZE as TOKENIZER_SIZE


@asynccontextmanager
async def thinking_speaker(
    directory: Path,
    name: str,
    save_tokenizer: Callable[..., Path],
    *,
    step_delay_s: float = 0.0,
) -> AsyncIterator[tuple[Speaker, Canary]]:
    """Serves one, whose canary has to answer as before at the end."""
    folder = directory / "texts"
    folder.mkdir()
    script = Script(
        texts_folder=str(folder), vocabulary_size=VOCABULARY_SIZE, step_delay_s=step_delay_s
    )
    # The engine finds its grammars' vocabulary where the front end finds the tokenizer.
    tokenizer = save_tokenizer(directory, chat_template=THINKING)
    async with (
        scripted_engine(directory, script) as engine,
        scripted_server(directory, tokenizer, engine) as server,
    ):
        speaker = Speaker(
            name=name,
            server=server,
            folder=folder,
            silent_ids=silent_ids(TOKENIZER_SIZE),
            reference=tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json")),
        )
        canary = await Canary.of(server)
        yield speaker, canary
        await canary.check()


def choice(*options: str) -> Constraint:
    return Constraint(choice=Choice(options=options))


def config_of(
    constraint: Constraint | None = None, stop: StopConditions | None = None, **output: object
) -> GenerationConfig:
    """Returns how it answers: the likeliest tokens, with their ids."""
    return GenerationConfig(
        sampling=SamplingParams(temperature=0),
        stop=stop,
        constraint=constraint,
        output=OutputOptions(token_ids=True, **output),
    )

"""Models that call tools and think, in the words of their families, over one engine.

They want to say what a test tells them; what they may not say they don't: the engine's masks, loop
and link are the real ones.
"""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import tokenizers
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.types_pb2 import (
    Conversation,
    GenerationConfig,
    Item,
    Output,
    Prompt,
    SamplingParams,
    StopConditions,
    Tool,
    ToolChoice,
    ToolResult,
)

from antiphon_server.text.tool_formats import ToolFormat
from support import chat_templates
from support.answers import LIMIT_S, ask, fold, without_call_ids
from support.multiplexing import Multiplexer
from support.real_server import scripted_engine, scripted_server
from support.scripted_engine import ANY_END, Script
from support.server import RunningServer
from support.session_rows import user
from support.tiny_tokenizers import save_byte_level_tokenizer

VOCABULARY_SIZE = 1024
CONTEXT_TOKENS = 2048
SPECIAL_MARKERS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>")
TEMPLATES = {
    "hermes": chat_templates.CHATML_WITH_TOOLS,
    "llama": chat_templates.ONE_BARE_CALL,
    "mistral_list": chat_templates.CALLS_IN_A_LIST,
    "mistral_named": chat_templates.CALLS_BY_NAME,
    "thinking": chat_templates.THINKING_WITH_TOOLS,
}
FAMILIES = ("hermes", "llama", "mistral_list", "mistral_named")
"""Those whose models don't think."""

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"enum": [1, 2, 3]}},
    "required": ["city"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
WEATHER = Tool(name="weather", description="Tells it.", parameters_json_schema=json.dumps(CITY))
CLOCK = Tool(name="clock_now", parameters_json_schema=json.dumps(NOTHING))
BARE_CLOCK = Tool(name="clock_now")
TOOLS = (WEATHER, CLOCK)

_CALLS = [
    f'{{"name": "{tool.name}", "{key}": {{}}}}'
    for tool in TOOLS
    for key in ("arguments", "parameters")
]
"""As models that call tools have read many."""

Calls = Sequence[tuple[str, str]]
"""Names and arguments."""
BERN: Calls = [("weather", '{"city": "Bern"}')]
TWO: Calls = [("weather", '{"city": "東京 }", "days": 2}'), ("clock_now", "{}")]


@dataclass(frozen=True, kw_only=True)
class CallingModel:
    """A server of one family."""

    name: str
    server: RunningServer
    folder: Path
    """Where the engine finds what to say behind which token."""

    @property
    def tools(self) -> ToolFormat:
        habits = self.server.model.renderer.habits
        assert habits.tools is not None
        return habits.tools

    @cached_property
    def reference(self) -> tokenizers.Tokenizer:
        """The tokenizer as its library reads it."""
        file = self.folder.parent / self.name / "tokenizer.json"
        return tokenizers.Tokenizer.from_file(str(file))

    @property
    def takes_several(self) -> bool:
        return self.server.model.renderer.habits.takes_several_calls

    @property
    def calls(self) -> Calls:
        """As many as one answer may hold."""
        return TWO if self.takes_several else TWO[:1]

    def write(self, calls: Calls) -> str:
        """Returns calls as a model of the family writes them."""
        wording = self.tools.wording
        texts = [wording.head_of(name) + arguments + wording.tail for name, arguments in calls]
        return wording.opener + wording.separator.join(texts) + wording.closer

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text, with markers as the tokens that they are."""
        return self.server.model.tokenizer.encode(
            text, add_special_tokens=False, allow_special_tokens=True
        )

    def wants(self, text: str, *, spelled: bool = False, goes_on: bool = False) -> list[int]:
        """Makes models want to say a text, whatever they are asked from now on.

        Args:
            text: The text.
            spelled: Whether each byte of it that is in no marker is a token.
            goes_on: Whether it wants to say the last token again and again, instead of ending.
        """
        token_ids = self._spell(text) if spelled else self.encode(text)
        (end_id,) = self.server.model.tokenizer.end_ids
        self.wants_ids([*token_ids, *([] if goes_on else [end_id])])
        return token_ids

    def wants_ids(self, token_ids: Sequence[int]) -> None:
        """As `wants`, by tokens; wants to say the last of them again and again."""
        (self.folder / ANY_END).write_bytes(msgspec.json.encode(list(token_ids)))

    def _spell(self, text: str) -> list[int]:
        tokenizer = self.server.model.tokenizer
        single = {tokenizer.token_bytes(token_id): token_id for token_id in reversed(range(1000))}
        spelled: list[int] = []
        for token_id in self.encode(text):
            token = tokenizer.token_bytes(token_id)
            is_marker = token_id in {t.token_id for t in tokenizer.control_tokens.by_text.values()}
            spelled += [token_id] if is_marker else [single[bytes([byte])] for byte in token]
        return spelled


def config(
    choice: ToolChoice | None = None, *, max_tokens: int = 200, **values: object
) -> GenerationConfig:
    return GenerationConfig(
        sampling=SamplingParams(temperature=0, seed=1),
        stop=StopConditions(max_output_tokens=max_tokens),
        tool_choice=choice,
        **values,
    )


def request(
    asked: GenerationConfig, *, tools: Sequence[Tool] = TOOLS, items: Sequence[Item] = ()
) -> GenerateRequest:
    conversation = Conversation(items=items or [user("What is it like?")], tools=tools)
    return GenerateRequest(prompt=Prompt(conversation=conversation), config=asked)


async def ask_every_way(server: RunningServer, asked: GenerateRequest) -> Output:
    """Asks by all three methods without a session; returns the one output, without its ids."""
    answer = await ask(server, asked)
    multiplexer = Multiplexer(server.inference, timeout=LIMIT_S)
    multiplexer.read_on()
    await multiplexer.start(1, asked)
    await multiplexer.finish()
    (multiplexed,) = fold(multiplexer.told[1].events, 1).outputs
    assert without_call_ids(multiplexed) == without_call_ids(answer.output)
    return answer.output


def calls_of(output: Output) -> list[tuple[str, str]]:
    return [(call.tool_name, call.arguments_json) for call in output.tool_calls]


def results_for(output: Output) -> Iterator[Item]:
    """Yields a result for each call."""
    for call in output.tool_calls:
        yield Item(tool_result=ToolResult(call_id=call.call_id, text="21 °C"))


@asynccontextmanager
async def calling_models(
    directory: Path, names: Sequence[str] = tuple(TEMPLATES)
) -> AsyncIterator[dict[str, CallingModel]]:
    """Serves models of families until the block ends."""
    folder = directory / "texts"
    folder.mkdir(parents=True)
    tokenizer = save_calling_tokenizer(directory)
    script = Script(
        texts_folder=str(folder), vocabulary_size=VOCABULARY_SIZE, context_tokens=CONTEXT_TOKENS
    )
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(scripted_engine(tokenizer, script))
        found = {}
        for name in names:
            home = directory / name
            save_calling_tokenizer(home, template=TEMPLATES[name])
            server = await stack.enter_async_context(scripted_server(home, home, engine))
            found[name] = CallingModel(name=name, server=server, folder=folder)
        yield found


def save_calling_tokenizer(directory: Path, *, template: str | None = None) -> Path:
    """Writes a tokenizer in which the families' markers, and the words around calls, are tokens."""
    save_byte_level_tokenizer(directory, chat_template=template, more_lines=_CALLS * 30)
    file = directory / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(text, normalized=False) for text in SPECIAL_MARKERS]
    )
    tokenizer.save(str(file))
    return directory

"""The tool calls of one output: their ids, and their arguments as they come."""

import hashlib
import string
import time
from collections.abc import Callable
from typing import Final

from antiphon.v1.types_pb2 import ToolCall

from antiphon_server.telemetry.request_record import Stage, StageKind
from antiphon_server.text.output_text import Piece

CALL_ID_CHARACTERS: Final = 9
"""Templates of Mistral's models take ids of exactly so many letters and digits."""
MAX_STAGES: Final = 16
"""So many calls tell how long they were read."""
_ALPHABET: Final = string.digits + string.ascii_letters


def tool_call_id(scope: str, output_index: int, call_index: int) -> str:
    """Returns the id of a call: the same whenever the same output is told again.

    Args:
        scope: What tells the request or turn from all others.
        output_index: Which of its outputs.
        call_index: Which of the output's calls.
    """
    said = f"{scope}\0{output_index}\0{call_index}".encode()
    number = int.from_bytes(hashlib.sha256(said).digest())
    characters = []
    for _ in range(CALL_ID_CHARACTERS):
        number, digit = divmod(number, len(_ALPHABET))
        characters.append(_ALPHABET[digit])
    return "".join(characters)


class OutputCalls:
    """Gathers calls. A call whose end has not come is not among them.

    Attributes:
        complete: The calls that are complete, in order.
        stages: From when to when the first of these were read.
    """

    def __init__(
        self,
        scope: str,
        output_index: int,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Sets what their ids are made of, see `tool_call_id`, and the monotonic clock."""
        self.complete: Final[list[ToolCall]] = []
        self.stages: Final[list[Stage]] = []
        self._clock_ns = clock_ns
        self._start_ns = 0
        self._scope = scope
        self._output_index = output_index
        self._open: ToolCall | None = None
        self._arguments: list[str] = []

    def take(self, piece: Piece) -> ToolCall:
        """Takes in a piece of a call, and returns what is known of that call."""
        if self._open is None:
            call_id = tool_call_id(self._scope, self._output_index, piece.call_index)
            self._open = ToolCall(call_id=call_id, tool_name=piece.tool_name)
            self._start_ns = self._clock_ns()
        call = self._open
        self._arguments.append(piece.text)
        if piece.completes_call:
            call.arguments_json = "".join(self._arguments)
            self.complete.append(call)
            self._note_stage(call)
            self._open, self._arguments = None, []
        return call

    def _note_stage(self, call: ToolCall) -> None:
        if len(self.stages) < MAX_STAGES:
            self.stages.append(
                Stage(
                    kind=StageKind.TOOL_PARSE,
                    start_ns=self._start_ns,
                    end_ns=self._clock_ns(),
                    attributes={"tool": call.tool_name},
                )
            )

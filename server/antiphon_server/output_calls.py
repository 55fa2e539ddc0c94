"""The tool calls of one output: their ids, and their arguments as they come."""

import hashlib
import string
from typing import Final

from antiphon.v1.types_pb2 import ToolCall

from antiphon_server.text.output_text import Piece

CALL_ID_CHARACTERS: Final = 9
"""Templates of Mistral's models take ids of exactly so many letters and digits."""
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
    """

    def __init__(self, scope: str, output_index: int) -> None:
        """Sets what their ids are made of; see `tool_call_id`."""
        self.complete: Final[list[ToolCall]] = []
        self._scope = scope
        self._output_index = output_index
        self._open: ToolCall | None = None
        self._arguments: list[str] = []

    def take(self, piece: Piece) -> ToolCall:
        """Takes in a piece of a call, and returns what is known of that call."""
        if self._open is None:
            call_id = tool_call_id(self._scope, self._output_index, piece.call_index)
            self._open = ToolCall(call_id=call_id, tool_name=piece.tool_name)
        call = self._open
        self._arguments.append(piece.text)
        if piece.completes_call:
            call.arguments_json = "".join(self._arguments)
            self.complete.append(call)
            self._open, self._arguments = None, []
        return call

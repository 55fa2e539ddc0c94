"""What stands before a conversation's items, as a turn finds it."""

import hashlib
from dataclasses import dataclass

from antiphon.v1.types_pb2 import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptHead:
    """What all of a prompt is rendered under."""

    instructions: str = ""
    tools: tuple[Tool, ...] = ()
    reasoning: bool | None = None
    """Whether the model is to think; None: as it does by itself."""

    @property
    def digest(self) -> bytes:
        """What tells a beginning rendered under this from others."""
        hashed = hashlib.sha256(self.instructions.encode())
        for tool in self.tools:
            hashed.update(b"\0" + tool.SerializeToString(deterministic=True))
        return hashed.digest()

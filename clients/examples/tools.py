"""A model that asks a tool of the caller's before it answers."""

import sys

from antiphon.v1.session_pb2 import Session
from antiphon.v1.types_pb2 import GenerationConfig, SamplingParams, ToolChoice

from antiphon_client import SyncClient, tool

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}

IN_WORDS = (
    "When you have a tool's response, never repeat it; "
    "answer in words, such as: It is 5 °C in Oslo."
)


def weather(arguments):
    """Stands for a service that knows."""
    return {"city": arguments["city"], "celsius": 21}


def main(target="127.0.0.1:50051"):
    """Asks, answers the calls that come, and prints what is said.

    A small model left to itself may write its call as plain text, so the first turn has to call;
    and it may repeat a result as it stands, so it is told not to, and takes its likeliest tokens.
    """
    has_to = GenerationConfig(
        tool_choice=ToolChoice(tool_name="weather"), sampling=SamplingParams(temperature=0)
    )
    told = tool("weather", "Tells how warm it is in a city.", CITY)
    settings = Session(tools=[told], instructions=IN_WORDS)
    with SyncClient(target) as client, client.new_session(settings) as session:
        for turn in session.use_tools("How warm is it in Bern?", {"weather": weather}, has_to):
            for piece in turn.text():
                print(piece, end="", flush=True)
            for call in turn.tool_calls:
                print(f"[{call.tool_name} {call.arguments_json}]")
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""`antiphon generate`: one answer, streamed to standard output."""

import argparse
import sys
from collections.abc import Iterable, Mapping
from typing import Final

from antiphon.v1 import inference_pb2, types_pb2
from google.protobuf import json_format

from antiphon_cli.asking import ask
from antiphon_cli.config_flags import add_config, add_model, config_of, fitting
from antiphon_cli.connection_flags import add_connection
from antiphon_cli.constraint_flags import add_constraint, constraint_of
from antiphon_cli.logprob_lines import line_of
from antiphon_cli.outcome import CUT_SHORT, INTERRUPTED, WRONG_USE, complain
from antiphon_cli.terminal import note, say
from antiphon_client import (
    SyncClient,
    SyncGeneration,
    conversation,
    raw_text,
    system,
    user,
)

DESCRIPTION = """\
Asks once and streams the answer to standard output.

Where an answer was cut, standard error says so, and the exit status is 0: that is what --max-tokens
is for. It is 4 where the answer had to keep to a form, since half of that keeps to none."""
EXAMPLES = """\
examples:
  antiphon generate "Write a haiku about rivers"
  antiphon generate --temperature 0 --max-tokens 64 "What is a semaphore?"
  git diff | antiphon generate --instructions "Write a commit message" -
  antiphon generate --raw "def fibonacci(n):"
  antiphon generate -n 3 --seed 7 "A name for a cat"
  antiphon generate --choice yes --choice no "Is water wet?"
  antiphon generate --json-schema person.json "Invent somebody" | jq .
  antiphon generate --regex "[0-9]{4}-[0-9]{2}-[0-9]{2}" "When did people land on the moon?"
  antiphon generate --grammar list.ebnf "Three rivers"
  antiphon generate --structural-tag calls.json "How warm is it in Bern?"
  antiphon generate --json "What is 2 + 2?" | jq .usage
  antiphon generate --raw --max-tokens 1 --prompt-logprobs 3 "To be or not to be"
"""

_CUTS: Final = {
    types_pb2.FINISH_REASON_MAX_OUTPUT_TOKENS: "cut at --max-tokens",
    types_pb2.FINISH_REASON_CONTEXT_FULL: "cut where the model's context is full",
    types_pb2.FINISH_REASON_TIME_LIMIT: "cut at the time limit",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument("prompt", help="what to ask; - reads it from standard input")
    add_model(parser)
    parser.add_argument("--instructions", metavar="TEXT", help="a system message before it")
    parser.add_argument(
        "--raw", action="store_true", help="continue the text as it stands, without chat template"
    )
    parser.add_argument(
        "-n",
        "--num-outputs",
        type=int,
        default=1,
        metavar="N",
        help="this many answers, unstreamed",
    )
    parser.add_argument(
        "--prompt-logprobs",
        type=int,
        metavar="N",
        help="say on standard error, token by token, how likely the model finds the prompt, with N"
        " likelier ones beside each; with --json: in the object, and of the answer too",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object: outputs, usage and timings"
    )
    add_constraint(parser)
    add_config(parser)
    add_connection(parser)


def run(arguments: argparse.Namespace) -> int:
    """Asks, and returns the exit status."""
    if arguments.raw and arguments.instructions:
        complain("--raw sends the text as it stands: it can't take --instructions")
        return WRONG_USE

    def answer(client: SyncClient, request: inference_pb2.GenerateRequest) -> int:
        if arguments.json or arguments.num_outputs != 1:
            return _print_whole(client, request, as_json=arguments.json)
        stream = client.stream_generate(request.prompt, request.config, model=request.model)
        return _print_stream(stream) or _tell_cuts(_reasons_of(stream), request)

    return ask(arguments, _request, answer)


def _request(arguments: argparse.Namespace) -> inference_pb2.GenerateRequest:
    text = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    config = config_of(arguments)
    constraint = constraint_of(arguments)
    if constraint is not None:
        config.constraint.CopyFrom(constraint)
    if arguments.prompt_logprobs is not None:
        config.output.prompt_logprobs = True
        config.output.top_logprobs = fitting("--prompt-logprobs", arguments.prompt_logprobs) or 0
    items = [system(arguments.instructions)] if arguments.instructions else []
    return inference_pb2.GenerateRequest(
        model=arguments.model,
        prompt=raw_text(text) if arguments.raw else conversation([*items, user(text)]),
        config=config,
        num_outputs=fitting("--num-outputs", arguments.num_outputs),
    )


def _print_stream(stream: SyncGeneration) -> int:
    try:
        for event in stream:
            if event.HasField("prompt_part"):
                _note_prompt(event.prompt_part.first_position, event.prompt_part.logprobs)
            elif event.delta.channel == types_pb2.OUTPUT_CHANNEL_CONTENT:
                say(event.delta.text)
    except KeyboardInterrupt:
        stream.cancel()
        say("\n")
        return INTERRUPTED
    say("\n")
    return 0


def _print_whole(
    client: SyncClient, request: inference_pb2.GenerateRequest, *, as_json: bool
) -> int:
    response = client.generate(
        request.prompt, request.config, model=request.model, num_outputs=request.num_outputs
    )
    reasons = {output.index: output.finish_reason for output in response.outputs}
    if as_json:
        print(json_format.MessageToJson(response, preserving_proto_field_name=True, indent=None))
        return _tell_cuts(reasons, request)
    _note_prompt(1, response.prompt_logprobs)
    for output in response.outputs:
        say(f"--- {output.index + 1} of {len(response.outputs)} ---\n{output.text}\n")
    return _tell_cuts(reasons, request)


def _reasons_of(stream: SyncGeneration) -> dict[int, types_pb2.FinishReason.ValueType]:
    return {index: ended.finish_reason for index, ended in stream.finished.items()}


def _tell_cuts(
    reasons: Mapping[int, types_pb2.FinishReason.ValueType], request: inference_pb2.GenerateRequest
) -> int:
    """Says which answers were cut, and returns the exit status.

    Args:
        reasons: Why each ended, by its index.
        request: What was asked.
    """
    cuts = {index: _CUTS[reason] for index, reason in sorted(reasons.items()) if reason in _CUTS}
    for index, cut in cuts.items():
        note(f"({cut})" if len(reasons) == 1 else f"(answer {index + 1} was {cut})")
    if not cuts or not request.config.HasField("constraint"):
        return 0
    complain("an answer was cut before it was whole, so it does not keep to its form")
    return CUT_SHORT


def _note_prompt(first_position: int, entries: Iterable[types_pb2.PositionLogprobs]) -> None:
    for position, entry in enumerate(entries, start=first_position):
        note(line_of(position, entry))

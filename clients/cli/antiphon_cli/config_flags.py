"""Flags that steer a generation, shared by the commands that generate."""

import argparse

from antiphon.v1 import types_pb2


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declares which model to ask."""
    parser.add_argument(
        "--model", metavar="NAME", default="", help="models/NAME; default: the server's only model"
    )


def add_config(parser: argparse.ArgumentParser) -> None:
    """Declares how to generate. What isn't given is left to the server and the checkpoint."""
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    sampling.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="keep the likeliest tokens up to this probability; 1: all",
    )
    sampling.add_argument(
        "--top-k", type=int, metavar="K", help="keep this many of the likeliest tokens; 0: all"
    )
    sampling.add_argument(
        "--min-p",
        type=float,
        metavar="P",
        help="drop tokens less likely than P times the likeliest",
    )
    sampling.add_argument(
        "--presence-penalty",
        type=float,
        metavar="X",
        help="lowers tokens that were in the answer; -2 to 2",
    )
    sampling.add_argument(
        "--frequency-penalty",
        type=float,
        metavar="X",
        help="the same, for each time they were; -2 to 2",
    )
    sampling.add_argument(
        "--repetition-penalty",
        type=float,
        metavar="X",
        help="a factor against tokens of prompt and answer; 1: none",
    )
    sampling.add_argument("--seed", type=int, metavar="N", help="makes sampling reproducible")
    ending = parser.add_argument_group("ending")
    ending.add_argument("--max-tokens", type=int, metavar="N", help="at most N output tokens")
    ending.add_argument("--min-tokens", type=int, metavar="N", help="at least N output tokens")
    ending.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end where the answer would contain TEXT; may be given again",
    )


def config_of(arguments: argparse.Namespace) -> types_pb2.GenerationConfig:
    """Returns what the flags say.

    Raises:
        ValueError: a number is outside of what its field can hold, or a text is not Unicode.
    """
    return types_pb2.GenerationConfig(
        sampling=types_pb2.SamplingParams(
            temperature=arguments.temperature,
            top_p=arguments.top_p,
            top_k=fitting("--top-k", arguments.top_k),
            min_p=arguments.min_p,
            presence_penalty=arguments.presence_penalty,
            frequency_penalty=arguments.frequency_penalty,
            repetition_penalty=arguments.repetition_penalty,
            seed=fitting("--seed", arguments.seed, maximum=(1 << 64) - 1),
        ),
        stop=types_pb2.StopConditions(
            max_output_tokens=fitting("--max-tokens", arguments.max_tokens),
            min_output_tokens=fitting("--min-tokens", arguments.min_tokens),
            stop_strings=arguments.stop,
        ),
    )


def fitting(flag: str, number: int | None, *, maximum: int = (1 << 32) - 1) -> int | None:
    """Returns `number`. Raises ValueError, naming the flag, where its field can't hold it."""
    if number is not None and not 0 <= number <= maximum:
        raise ValueError(f"{flag}: must be from 0 to {maximum}, is {number}")
    return number

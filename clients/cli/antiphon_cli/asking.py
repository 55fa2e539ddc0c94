"""What commands that ask a server have in common: how they begin, and how failures are told."""

import argparse
from collections.abc import Callable
from typing import TypeVar

from antiphon_cli.connection_flags import connect
from antiphon_cli.failures import report
from antiphon_cli.outcome import WRONG_USE, complain_of
from antiphon_client import ServerError, SyncClient

Question = TypeVar("Question")


def ask(
    arguments: argparse.Namespace,
    read: Callable[[argparse.Namespace], Question],
    work: Callable[[SyncClient, Question], int],
) -> int:
    """Reads what to ask, connects, and does the work; returns the exit status.

    Args:
        arguments: With the flags of a connection.
        read: Returns what the command's own flags, and the files and the input that they name,
            say. It raises OSError or ValueError where they don't say it.
        work: Asks, and returns the exit status. What a server refuses, it need not catch.

    Raises:
        UnicodeError: standard input is no text.
    """
    try:
        question = read(arguments)
        connected = connect(arguments)
    except UnicodeError:
        raise
    except (OSError, ValueError) as error:
        complain_of(error)
        return WRONG_USE
    with connected as client:
        try:
            return work(client, question)
        except ServerError as error:
            return report(error, arguments.target)

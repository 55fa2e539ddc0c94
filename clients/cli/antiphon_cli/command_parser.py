"""Reads a command's words, and says in one line what is wrong with them."""

import argparse
import difflib
import re
from typing import NoReturn

from antiphon_cli.outcome import WRONG_USE, complain

_UNKNOWN = re.compile(r"unrecognized arguments: (?P<first>\S+).*")

_FLAG = re.compile(r"--[a-z-]+")


class CommandParser(argparse.ArgumentParser):
    """Like argparse's, but a mistake brings one line and not the whole usage."""

    def error(self, message: str) -> NoReturn:
        """Complains, and ends the process with the status for a wrong command line."""
        if (unknown := _UNKNOWN.fullmatch(message)) is not None:
            message = self._on_unknown(unknown["first"])
        complain(f"{message}; `{self.prog} --help` explains")
        raise SystemExit(WRONG_USE)

    def _on_unknown(self, first: str) -> str:
        if not first.startswith("-"):
            return f"{first!r} is one word too many; put a text of several words in quotes"
        near = difflib.get_close_matches(first.partition("=")[0], self._flags, n=1)
        hint = f", did you mean {near[0]}?" if near else ""
        return f"there is no flag {first}{hint}"

    @property
    def _flags(self) -> list[str]:
        return _FLAG.findall(self.format_usage())

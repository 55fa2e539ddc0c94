"""The main functions of forks that need no PyTorch, by name. Each reads `sys.argv`."""

from collections.abc import Callable, Mapping
from typing import Final

import uvloop  # noqa: F401 - the loop that servers run on: else each would import it

import antiphon_server.serve  # noqa: F401 - what the command imports as it serves
from antiphon_server.settings import setting_keys
from support.fake_checker import forked_main as fake_checker_main
from support.fake_engine_process import main as fake_engine_main
from support.serve_by_forks import main as serve_main
from support.terminal import main as terminal_main
from torture.trusting_checker_process import main as trusting_checker_main
from torture.zygote import serve_commands

setting_keys()  # Else each server would work out the settings' types.

MAINS: Final[Mapping[str, Callable[[], int]]] = {
    "antiphon_serve": serve_main,
    "support.fake_checker": fake_checker_main,
    "support.fake_engine_process": fake_engine_main,
    "support.terminal": terminal_main,
    "torture.trusting_checker_process": trusting_checker_main,
    "torture.zygote": serve_commands,
}

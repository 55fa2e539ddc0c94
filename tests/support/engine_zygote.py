"""Engine processes that start in a moment: forks of a process that has imported torch.

`forked` returns a command for `EngineLink.start`. What that runs is small: it hands its files to
the zygote, waits for the engine that is forked for it, and ends as that does. When it is killed,
the engine is. Its process id is not the engine's, though: who stops the engine, or reads what it
uses, runs it by the command that was given.
"""

from collections.abc import Sequence
from pathlib import Path

from support.fake_engine_process import Behaviour, fake_engine_command
from support.scripted_engine import Script, write_script
from support.zygote import launcher_command


def forked(main: str, arguments: Sequence[str] = ()) -> list[str]:
    """Returns the command that has the zygote fork an engine.

    Args:
        main: The engine's main function, by its name: see `support.engine_mains`.
        arguments: Of its command line.
    """
    return [*launcher_command(), main, *arguments]


def fork_script(path: Path, script: Script) -> list[str]:
    """As `write_script`, by a fork."""
    _, _, *arguments = write_script(path, script)
    return forked("support.scripted_engine", arguments)


def fork_fake_engine(path: Path, behaviour: Behaviour) -> list[str]:
    """As `fake_engine_command`, by a fork."""
    _, _, _, *arguments = fake_engine_command(path, behaviour)
    return forked("support.fake_engine_process", arguments)

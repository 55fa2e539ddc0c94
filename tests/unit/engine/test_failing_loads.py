"""What a front end is told where an engine can't load its model."""

import re
import socket

import pytest
import torch

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.frames import front_end_reader
from antiphon_engine.api.messages import LoadFailed
from antiphon_engine.api.process import EngineStart
from antiphon_engine.engine_process import run_engine


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StartupError("there is no such model"), "there is no such model"),
        (MemoryError("Unable to allocate 256 MiB"), "memory ran out .*Unable to allocate 256 MiB"),
        (MemoryError(), r"memory ran out .*lower engine\.kv_cache_bytes"),
        (torch.OutOfMemoryError("Tried to allocate 9 GiB"), "memory ran out .*allocate 9 GiB"),
    ],
)
def test_load_that_fails_is_told_and_ends_the_engine(error, words):
    def load(start, on_progress):
        raise error

    front_end, engine = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with front_end, engine:
        status = run_engine(EngineStart(config=EngineConfig(), checkpoint=""), engine, load)

        (told,) = front_end_reader().feed(front_end.recv(1 << 16))

    assert status == 1
    assert isinstance(told, LoadFailed)
    assert re.search(words, told.message)

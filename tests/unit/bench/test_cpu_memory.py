"""Whose memory it is that `make bench-cpu` tells."""

import pytest

from bench.cpu_peers.memory import role_of


@pytest.mark.parametrize(
    ("command", "role"),
    [
        (["/venv/bin/python", "-m", "antiphon_cli.main", "serve", "-m"], "antiphon_cli"),
        (["python", "-m", "antiphon_engine", "--link-fd", "26"], "antiphon_engine"),
        (["python", "-m", "server.constraints.checker_process"], "checker_process"),
        (["python", "/bench/openvino_worker.py", "model", "2"], "openvino_worker"),
        (["/peers/bin/llama-server", "-m", "model.gguf"], "llama-server"),
        ([], "ended"),
    ],
)
def test_process_is_named_by_what_it_runs(command, role):
    assert role_of(command) == role

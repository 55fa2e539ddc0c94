"""The flags that say which server to ask: what a later command needs of them."""

import argparse
from pathlib import Path

import pytest

from antiphon_cli.connection_flags import add_connection, connect, flags_again


def _read(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_connection(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "again"),
    [
        ((), ""),
        (("--target", "127.0.0.1:50051"), ""),
        (("--target", "host:1", "--tls"), " --target host:1 --tls"),
        (("--ca", "my ca.pem", "--insecure"), " --ca 'my ca.pem' --insecure"),
        (
            ("--token-file", "t", "--cert", "c", "--key", "k"),
            " --token-file t --cert c --key k",
        ),
    ],
)
def test_a_later_command_is_told_the_flags_that_lead_to_the_same_server(
    words: tuple[str, ...], again: str
):
    assert flags_again(_read(*words)) == again


@pytest.mark.parametrize("content", [b"", b"one two", b"\xff\xfe", "tok\u00e9n".encode()])
def test_a_file_that_holds_no_token_is_named(tmp_path: Path, content: bytes):
    path = tmp_path / "token"
    path.write_bytes(content)

    with pytest.raises(ValueError, match="token must hold one token and nothing else"):
        connect(_read("--token-file", str(path)))

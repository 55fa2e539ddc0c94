"""Commands for those who run a server."""

import argparse
import asyncio
from hashlib import sha256
from pathlib import Path

import pytest

from antiphon_cli import build_attention
from antiphon_cli.main import main
from antiphon_server.access.credentials import load_credentials
from antiphon_server.sessions.sqlite_store import SqliteStore


def test_backup_copies_the_store_and_says_where(tmp_path: Path, capsys) -> None:
    store, copy = tmp_path / "sessions.db", tmp_path / "copy.db"
    asyncio.run(SqliteStore.open(store, synchronous="normal", owner="test").close())
    words = ["backup", "--store", str(store), str(copy)]

    assert main(words) == 0
    said = capsys.readouterr().out
    assert said == f"{copy}: {copy.stat().st_size} bytes\n"
    assert main(words) == 1
    assert capsys.readouterr().err == (
        f"antiphon: {copy} is there already; name a file that is not\n"
    )


@pytest.mark.parametrize("more", [[], ["--admin"], ["--days", "90"]])
def test_token_prints_lines_that_let_it_in(tmp_path: Path, capsys, more: list[str]) -> None:
    assert main(["token", "--tenant", "acme", *more]) == 0
    lines, token = capsys.readouterr()
    path = tmp_path / "tokens.toml"
    path.write_text(lines)

    (known,) = load_credentials(path, key="server.tokens_file").by_digest_start.values()

    assert known.identity.tenant == "acme"
    assert known.identity.admin == ("--admin" in more)
    assert (known.identity.expire_time is not None) == ("--days" in more)
    assert f'"{sha256(token.strip().encode()).hexdigest()}"' in lines
    assert token.strip() not in lines


def test_tokens_are_never_the_same(capsys) -> None:
    said = set()
    for _ in range(3):
        main(["token", "--tenant", "acme"])
        said.add(capsys.readouterr().err)

    assert len(said) == 3


@pytest.mark.parametrize("words", [["--tenant", "a b"], ["--tenant", "a", "--days", "0"]])
def test_wrong_use_of_token_is_told_in_one_line(capsys, words: list[str]) -> None:
    assert main(["token", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_build_attention_builds_for_a_head_size(capsys) -> None:
    parser = argparse.ArgumentParser()
    build_attention.add_arguments(parser)
    commands: list[list[str]] = []

    def run_build(command):
        commands.append(list(command))
        return 7

    status = build_attention.run(parser.parse_args(["--head-dim", "128"]), run_build=run_build)

    assert status == 7
    assert commands[0][-2:] == ["--head-dim", "128"]
    with pytest.raises(SystemExit) as ended:
        main(["build-attention", "--head-dim", "96"])
    assert ended.value.code == 2
    assert "128" in capsys.readouterr().err

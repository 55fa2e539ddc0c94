"""Flags that say what an answer must look like, where they are given wrongly."""

import sys

import pytest

from antiphon_cli.main import main


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            ["--json-schema", "/no/such/file"],
            "--json-schema names a file, or - for standard input; /no/such/file: No such file",
        ),
        (["--json-schema", sys.executable], ": no text in UTF-8"),
        (["--json-schema", "{" * 300], "{…: File name too long"),
        (["--grammar", 'root ::= "a"'], "--grammar names a file"),
        (["--structural-tag", "/"], "--structural-tag names a file"),
    ],
)
@pytest.mark.parametrize("command", [["generate", "hello"], ["validate-constraint"]])
def test_file_that_can_not_be_read_is_told_with_its_flag(command, flags, told, capsys):
    status = main([*command, *flags])

    (line,) = capsys.readouterr().err.splitlines()
    assert status == 2
    assert told in line

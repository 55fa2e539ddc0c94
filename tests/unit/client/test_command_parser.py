"""What is said of command lines that are wrong."""

import pytest

from antiphon_cli.main import main


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("generate --modell x hi", "there is no flag --modell, did you mean --model?"),
        ("top --intervall=3", "there is no flag --intervall=3, did you mean --interval?"),
        ("generate --zzz hi", "there is no flag --zzz;"),
        ("generate hi there you", "'there' is one word too many; put a text of several words"),
        ("generate", "the following arguments are required: prompt;"),
        ("session lst", "invalid choice: 'lst' (choose from"),
    ],
)
def test_a_wrong_command_line_brings_one_line_that_says_what_to_do(
    words: str, complaint: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        main(words.split())

    told = capsys.readouterr()
    assert ended.value.code == 2
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert told.err.startswith("antiphon: ")
    assert complaint in told.err
    assert f"`antiphon {words.split(maxsplit=1)[0]} --help` explains" in told.err

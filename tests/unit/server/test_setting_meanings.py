"""What is said about settings stands under their fields, and people get to see it."""

from antiphon_cli.main import main
from antiphon_server.setting_meanings import meanings
from antiphon_server.settings import setting_keys


def test_every_setting_has_a_meaning():
    assert list(meanings()) == list(setting_keys())
    assert all(meaning.endswith(".") and "\n" not in meaning for meaning in meanings().values())


def test_explain_tells_the_settings_of_such_a_name_with_values_and_meanings(capsys):
    status = main(["serve", "--explain", "queued_turns", "--set", "sessions.max_queued_turns=3"])

    printed = capsys.readouterr().out
    assert status == 0
    assert [line for line in printed.splitlines() if line and not line.startswith(" ")] == [
        "sessions.max_queued_turns = 3",
        "quotas.max_queued_turns = 0",
    ]
    assert all(
        meanings()[key] in " ".join(printed.split())
        for key in ("sessions.max_queued_turns", "quotas.max_queued_turns")
    )
    assert max(len(line) for line in printed.splitlines()) <= 100


def test_explain_without_a_name_tells_all_settings(capsys):
    assert main(["serve", "--explain"]) == 0

    printed = capsys.readouterr().out
    assert [line.split(" ")[0] for line in printed.splitlines() if " = " in line[:60]] == list(
        setting_keys()
    )


def test_explain_of_a_name_that_no_setting_has_names_the_nearest(capsys):
    status = main(["serve", "--explain", "engine.max_row_s"])

    captured = capsys.readouterr()
    assert (status, captured.out) == (2, "")
    assert "'engine.max_row_s'" in captured.err
    assert "engine.max_rows" in captured.err

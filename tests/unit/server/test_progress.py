import io

from structlog.testing import capture_logs

from antiphon_server.progress import LoggedProgress, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_stages_and_shares_are_told_a_line_each_to_a_file() -> None:
    stream, now = io.StringIO(), [0.0]
    progress = Progress(stream, lambda: now[0])

    progress("loading", 0, 100)
    now[0] = 1.0
    progress("loading", 10, 100)
    now[0] = 6.0
    progress("loading", 50, 100)
    progress("loading", 100, 100)
    progress("warming up", 0, 0)
    progress.end()

    assert stream.getvalue().splitlines() == [
        "loading   0 %",
        "loading  50 %",
        "loading 100 %",
        "warming up",
    ]


def test_terminal_has_one_line_a_stage_that_moves() -> None:
    stream, now = Terminal(), [0.0]
    progress = Progress(stream, lambda: now[0])

    for percent in range(101):
        now[0] += 0.1
        progress("loading", percent, 100)
    progress("warming up", 0, 0)
    progress.end()

    assert stream.getvalue().count("\n") == 2
    assert 40 < stream.getvalue().count("loading") < 60


def test_log_has_each_stage_at_its_begin_and_end_and_now_and_then_between() -> None:
    now = [0.0]
    progress = LoggedProgress(lambda: now[0])

    with capture_logs() as log:
        progress("loading", 0, 100)
        now[0] = 1.0
        progress("loading", 10, 100)
        now[0] = 6.0
        progress("loading", 50, 100)
        progress("loading", 100, 100)
        progress("warming up", 0, 0)
        progress.end()

    assert {line["event"] for line in log} == {"starting"}
    assert [(line["stage"], line["done"], line["total"]) for line in log] == [
        ("loading", 0, 100),
        ("loading", 50, 100),
        ("loading", 100, 100),
        ("warming up", 0, 0),
    ]

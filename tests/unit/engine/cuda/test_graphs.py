"""In which order steps are recorded."""

from antiphon_engine.cuda.graphs import record_all
from support.graph_model import RecorderThatRepeats


def test_largest_step_is_recorded_first_and_progress_is_told():
    launched, told = [], []
    recorder = RecorderThatRepeats()

    replays = record_all(recorder, (1, 2, 8), launched.append, lambda *news: told.append(news))

    assert launched == [8, 2, 1]
    assert told == [("capture", 1, 3), ("capture", 2, 3), ("capture", 3, 3)]
    assert recorder.num_recorded == 3
    replays[2]()
    assert launched == [8, 2, 1, 2]

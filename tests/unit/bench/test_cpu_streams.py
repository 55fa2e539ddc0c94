"""The rates that `make bench-cpu` tells of streams, and the plot that it draws."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.cpu_peers.plot import write_plot
from bench.cpu_peers.streams import (
    Streamed,
    check_lengths,
    decode_tokens_per_s,
    first_token_s,
)


def test_decoding_counts_from_when_every_stream_has_its_first_token():
    early = Streamed([1, 2, 3, 4], [0.1, 0.2, 1.5, 2.0])
    late = Streamed([1, 2], [1.0, 3.0])
    assert first_token_s([early, late]) == 1.0
    # Behind 1.0 come two tokens of one and one of the other, within two seconds.
    assert decode_tokens_per_s([early, late]) == pytest.approx(1.5)


def test_a_single_token_has_no_rate_of_decoding():
    assert decode_tokens_per_s([Streamed([1], [0.5])]) == 0.0


def test_a_stream_of_another_length_is_refused():
    with pytest.raises(RuntimeError, match=r"asked for 2 tokens a stream and got \[2, 1\]"):
        check_lengths([Streamed([1, 2], [0.1, 0.2]), Streamed([1], [0.1])], 2)


def test_a_plot_has_a_bar_for_each_figure_and_leaves_failures_out(tmp_path: Path):
    path = tmp_path / "plot.svg"
    seen = {"decode1_tps": 40.0, "startup_s": 2.0}
    write_plot(path, {"a<b": seen, "slow": {"decode1_tps": 20.0}, "broken": {"failure": "no"}})
    root = ElementTree.parse(path).getroot()
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert texts.count("a<b") == 2
    assert "broken" not in texts
    widths = [
        float(element.attrib["width"])
        for element in root.iter()
        if element.tag.endswith("rect") and element.attrib["fill"] != "white"
    ]
    assert widths[0] == pytest.approx(2 * widths[1])

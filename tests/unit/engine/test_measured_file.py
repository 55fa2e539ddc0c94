from antiphon_engine.measured_file import keep_measured, read_measured


def test_what_was_kept_is_read_again(tmp_path):
    path = tmp_path / "new" / "figures.json"

    keep_measured(path, {"a": 1})
    keep_measured(path, {"a": 2})

    assert read_measured(path, dict[str, int]) == {"a": 2}
    assert [*path.parent.iterdir()] == [path]


def test_what_can_not_be_kept_leaves_nothing_behind(tmp_path):
    path = tmp_path / "figures.json"
    path.mkdir()

    keep_measured(path, {"a": 1})

    assert [*tmp_path.iterdir()] == [path]
    assert read_measured(path, dict[str, int]) is None


def test_a_file_of_another_kind_counts_as_none(tmp_path):
    path = tmp_path / "figures.json"
    path.write_text('["a"]')

    assert read_measured(path, dict[str, int]) is None
    assert read_measured(tmp_path / "none.json", dict[str, int]) is None

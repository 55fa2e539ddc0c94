import dataclasses
from pathlib import Path

import pytest

from antiphon_engine.api.errors import StartupError
from antiphon_server.config import Config
from antiphon_server.settings import changed, describe, in_force, load_config, setting_keys
from antiphon_server.settings_rules import RULES

HOME = {"HOME": "/home/ada"}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_each_source_overrides_the_one_before(tmp_path: Path) -> None:
    file = write(
        tmp_path / "antiphon.toml",
        '[engine]\nmax_rows = 8\nmax_step_tokens = 100\n[server]\nlisten = "127.0.0.1:1"\n',
    )
    environ = {
        **HOME,
        "ANTIPHON_ENGINE__MAX_STEP_TOKENS": "200",
        "ANTIPHON_SERVER__LISTEN": "127.0.0.1:2",
    }

    config = load_config(["server.listen=127.0.0.1:3"], file, environ)

    assert config.engine.max_requests == Config().engine.max_requests
    assert config.engine.max_rows == 8
    assert config.engine.max_step_tokens == 200
    assert config.server.listen == "127.0.0.1:3"


def test_steps_are_larger_on_cuda_where_nothing_else_is_set() -> None:
    config = load_config(["engine.device=cuda", "engine.max_rows=8"], None, HOME)
    unset = load_config(["engine.device=cuda"], None, HOME)

    assert (config.engine.max_rows, config.engine.max_step_tokens) == (8, 8192)
    assert (unset.engine.max_rows, unset.engine.max_step_tokens) == (256, 8192)
    told = changed(unset)
    assert told["engine.device"] == "cuda"
    assert not {"engine.max_rows", "engine.max_step_tokens"} & set(told)


def test_the_later_of_two_settings_on_the_command_line_wins() -> None:
    config = load_config(["engine.max_rows=3", "engine.max_rows=4"], None, HOME)

    assert config.engine.max_rows == 4


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("engine.max_rws=4", "engine.max_rows"),
        ("engine.max_contxt_tokens=4", "engine.max_context_tokens"),
        ("listen=127.0.0.1:1", "server.listen"),
        ("serve.listen=127.0.0.1:1", "server.listen"),
    ],
)
def test_unknown_key_on_the_command_line_is_refused_with_the_nearest(
    wrong: str, meant: str
) -> None:
    with pytest.raises(StartupError, match=f"^command line: .*did you mean {meant}"):
        load_config([wrong], None, HOME)


def test_unknown_key_in_the_file_is_refused_with_the_nearest(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", "[engine]\nmax_contxt_tokens = 1\n")

    with pytest.raises(StartupError, match=r"a\.toml: .*did you mean engine.max_context_tokens"):
        load_config([], file, HOME)


def test_unknown_section_in_the_file_is_refused_with_the_nearest(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", "[engin]\nmax_rows = 1\n")

    with pytest.raises(StartupError, match=r"no section \[engin\]; did you mean engine"):
        load_config([], file, HOME)


@pytest.mark.parametrize("name", ["max_context_tokens", "max_contxt_tokens"])
def test_setting_outside_of_sections_is_refused_with_where_it_stands(
    tmp_path: Path, name: str
) -> None:
    file = write(tmp_path / "a.toml", f"{name} = 100\n")

    with pytest.raises(StartupError, match=r"a\.toml: .*did you mean engine.max_context_tokens"):
        load_config([], file, HOME)


def test_unknown_variable_is_refused_with_the_nearest() -> None:
    with pytest.raises(StartupError, match="did you mean ANTIPHON_SERVER__LISTEN"):
        load_config([], None, {**HOME, "ANTIPHON_SERVER__LISTN": "x"})


def test_other_variables_are_ignored() -> None:
    assert load_config([], None, {**HOME, "PATH": "/bin"}) == load_config([], None, HOME)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("512MiB", 512 << 20), ("2 GiB", 2 << 30), ("1.5kib", 1536), ("3GB", 3 * 10**9), ("77", 77)],
)
def test_sizes_are_read_with_their_units(text: str, size_bytes: int) -> None:
    config = load_config([f"engine.kv_cache_bytes={text}"], None, HOME)

    assert config.engine.kv_cache_bytes == size_bytes


@pytest.mark.parametrize(("text", "value"), [("true", True), ("0", False), ("No", False)])
def test_switches_are_read_from_words(text: str, value: bool) -> None:
    assert load_config([f"server.insecure={text}"], None, HOME).server.insecure is value


@pytest.mark.parametrize(
    "setting",
    [
        "engine.max_rows=4.5",
        "engine.max_rows=4MiB",
        "engine.max_rows=",
        "engine.prefix_reuse=maybe",
        "server.drain_limit_s=nan",
        "server.drain_limit_s=soon",
        "server.drain_limit_s=-1",
        "engine.max_rows=0",
        "engine.dtype=float8",
        "engine.cpu_kernels=sse",
        "engine.quantization=int2",
        "engine.attention_backend=xformers",
        "engine.device=tpu",
        "engine.run_ahead=3",
        "engine.capacity_policy=optimistic",
        "engine.chunk_policy=fair",
        "engine.fault_pause_every=-1",
        "engine.block_tokens=33",
        "store.synchronous=off",
        "logging.level=loud",
        "engine.kv_cache_bytes=5XB",
        "engine.kv_cache_bytes=0.5",
    ],
)
def test_bad_value_is_refused_with_source_key_value_and_what_is_allowed(setting: str) -> None:
    key, _, value = setting.partition("=")

    with pytest.raises(StartupError) as caught:
        load_config([setting], None, HOME)

    message = str(caught.value)
    assert message.startswith(f"command line: {key} is ")
    assert value in message
    assert "must be" in message or "takes" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (["engine.chunk_tokens=31"], "engine.chunk_tokens is 31; it must be at least "),
        (["engine.max_step_tokens=31"], "engine.max_step_tokens is 31; it must be at least "),
        (
            ["engine.block_tokens=128", "engine.chunk_tokens=127"],
            "engine.chunk_tokens is 127; it must be at least engine.block_tokens, which is 128",
        ),
        (["engine.max_context_tokens=1"], "engine.max_context_tokens is 1; it must be at least 2"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_with_their_values(
    sets: list[str], told: str
) -> None:
    with pytest.raises(StartupError) as caught:
        load_config(sets, None, HOME)

    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    "setting",
    ["engine.chunk_tokens=0", "engine.chunk_tokens=32", "engine.max_step_tokens=32"],
)
def test_settings_at_what_another_allows_are_taken(setting: str) -> None:
    key, _, value = setting.partition("=")

    assert describe(load_config([setting], None, HOME))[key] == value


@pytest.mark.parametrize(
    "text",
    [
        "[engine]\nmax_rows = true\n",
        '[server]\ninsecure = "x"\n',
        "[server]\nlisten = 5\n",
        "[server]\ninsecure = 1\n",
    ],
)
def test_value_of_another_type_in_the_file_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(StartupError, match="must be"):
        load_config([], write(tmp_path / "a.toml", text), HOME)


@pytest.mark.parametrize("num_digits", [30, 400, 5000])
@pytest.mark.parametrize(
    ("key", "unit"),
    [("engine.max_rows", ""), ("engine.kv_cache_bytes", "GiB"), ("server.drain_limit_s", "")],
)
def test_endless_number_is_refused_in_a_short_line(
    tmp_path: Path, key: str, unit: str, num_digits: int
) -> None:
    section, _, name = key.partition(".")
    digits = "9" * num_digits
    path = write(tmp_path / "a.toml", f"[{section}]\n{name} = {digits}\n")

    for sets, file in (([f"{key}={digits}{unit}"], None), ([], path)):
        with pytest.raises(StartupError) as caught:
            load_config(sets, file, HOME)

        assert len(str(caught.value)) < 400 + len(str(tmp_path))


@pytest.mark.parametrize(
    ("setting", "allowed"),
    [
        ("engine.kv_cache_bytes=-1", "from 0 to 1125899906842624"),
        ("sessions.idle_ttl_s=-1", "from 1 to 315360000"),
        ("telemetry.sample_ratio=2", "from 0 to 1"),
    ],
)
def test_what_is_allowed_is_told_as_a_setting_takes_it(setting: str, allowed: str) -> None:
    with pytest.raises(StartupError, match=f"{allowed}$"):
        load_config([setting], None, HOME)


def test_file_that_is_nested_too_deeply_is_refused_with_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.toml", "a = " + "[" * 5000 + "]" * 5000)

    with pytest.raises(StartupError, match=r"a\.toml"):
        load_config([], path, HOME)


def test_file_that_is_not_toml_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"a\.toml: is not TOML"):
        load_config([], write(tmp_path / "a.toml", "[engine\n"), HOME)


def test_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"none\.toml: can't be read: No such file"):
        load_config([], tmp_path / "none.toml", HOME)


def test_command_line_setting_without_a_value_is_refused() -> None:
    with pytest.raises(StartupError, match=r"'engine.max_rows' is not of the form"):
        load_config(["engine.max_rows"], None, HOME)


def test_redis_store_is_refused_by_name() -> None:
    with pytest.raises(StartupError, match=r"redis://h:6379.*SQLite"):
        load_config(["store.path=redis://h:6379"], None, HOME)


def test_user_folders_come_from_the_environment() -> None:
    plain = load_config([], None, HOME)
    moved = load_config([], None, {**HOME, "XDG_CACHE_HOME": "/c", "XDG_STATE_HOME": "/s"})
    given = load_config(["store.path=~/x.db", "model.source=~/m"], None, HOME)

    assert plain.model.cache_dir == "/home/ada/.cache/antiphon"
    assert plain.store.path == "/home/ada/.local/state/antiphon/sessions.db"
    assert moved.model.cache_dir == "/c/antiphon"
    assert moved.store.path == "/s/antiphon/sessions.db"
    assert given.store.path == "/home/ada/x.db"
    assert given.model.source == "/home/ada/m"


def test_description_read_as_a_file_gives_the_same_settings(tmp_path: Path) -> None:
    config = load_config(['model.name=a "b"', "engine.kv_cache_bytes=1GiB"], None, HOME)
    sections: dict[str, list[str]] = {}
    for key, value in describe(config).items():
        section, _, name = key.partition(".")
        sections.setdefault(section, [f"[{section}]"]).append(f"{name} = {value}")
    text = "\n".join(line for lines in sections.values() for line in lines)

    again = load_config([], write(tmp_path / "a.toml", text), HOME)

    assert again == config


def test_settings_in_force_are_plain_values_in_the_order_of_the_tree() -> None:
    settings = in_force(load_config(["engine.max_rows=3", "store.path=/x"], None, HOME))

    assert list(settings) == list(setting_keys())
    assert settings["engine.max_rows"] == 3
    assert settings["store.path"] == "/x"


def test_every_number_has_a_range() -> None:
    numbers = {key for key, kind in setting_keys().items() if kind in ("int", "float")}

    assert numbers <= set(RULES)
    assert set(RULES) <= set(setting_keys())


def test_defaults_keep_their_own_rules() -> None:
    config = Config()
    settings = [
        f"{section.name}.{name}={value}"
        for section in dataclasses.fields(config)
        for name, value in dataclasses.asdict(getattr(config, section.name)).items()
        if value != ""
    ]

    assert load_config(settings, None, HOME) == load_config([], None, HOME)


def test_what_a_server_begins_with_is_told_where_it_is_not_the_usual() -> None:
    config = load_config(["engine.max_rows=3", "server.insecure=false"], None, HOME)

    told = changed(config)

    assert told["engine.max_rows"] == 3
    # Where things lie on this machine is told always.
    assert set(told) == {"engine.max_rows", "model.cache_dir", "store.path"}


def test_home_folder_is_the_users_where_the_environment_names_none():
    config = load_config(["model.source=~/m"], None, {}, home_of_user=lambda: "/home/eve")

    assert config.model.source == "/home/eve/m"
    assert config.model.cache_dir == "/home/eve/.cache/antiphon"
    assert config.store.path == "/home/eve/.local/state/antiphon/sessions.db"


@pytest.mark.parametrize(
    ("sets", "environ", "wanted"),
    [
        ([], {}, r"model\.cache_dir.*XDG_CACHE_HOME or HOME"),
        (["model.cache_dir=/c"], {"HOME": ""}, r"store\.path.*XDG_STATE_HOME or HOME"),
        ([], {"XDG_CACHE_HOME": "/c"}, r"store\.path.*XDG_STATE_HOME or HOME"),
    ],
)
def test_what_would_be_kept_in_a_home_folder_needs_one(sets, environ, wanted):
    with pytest.raises(StartupError, match=wanted):
        load_config(sets, None, environ, home_of_user=lambda: "")


def test_no_home_folder_is_needed_where_all_places_are_named():
    config = load_config(
        ["store.path=/s.db"], None, {"XDG_CACHE_HOME": "/c"}, home_of_user=lambda: ""
    )

    assert (config.model.cache_dir, config.store.path) == ("/c/antiphon", "/s.db")

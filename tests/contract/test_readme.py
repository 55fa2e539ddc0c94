import re
from pathlib import Path

import pytest

from antiphon_cli.main import COMMANDS
from antiphon_server import settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TELEMETRY = (ROOT / "deploy/telemetry.md").read_text()
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30, "days": 86400}
LIMIT = re.compile(r"^\| [^|]+ \| ([\d,]+)(?: (\w+))? \| `(\w+\.\w+)` \|$", re.MULTILINE)


def test_the_example_is_the_example_file():
    example = (ROOT / "clients/examples/two_turns.py").read_text()

    assert f"```python\n{example}```" in README


@pytest.mark.parametrize(("figure", "unit", "key"), LIMIT.findall(README))
def test_a_limit_is_the_settings_default(figure, unit, key):
    in_force = settings.describe(settings.load_config([], None, {}))

    expected = int(figure.replace(",", "")) * UNITS.get(unit, 1)
    assert float(in_force[key]) == expected


def test_the_limits_are_found_in_the_table():
    assert len(LIMIT.findall(README)) == 13


def test_every_setting_that_is_named_exists():
    named = set(
        re.findall(
            r"[` ]((?:model|server|store|sessions|limits|constraints|quotas|engine|logging"
            r"|telemetry)\.\w+)[`=]",
            README + TELEMETRY,
        )
    )

    assert named <= settings.setting_keys().keys()


def test_make_targets_and_commands_that_are_named_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`make ([a-z-]+)`|\$ make ([a-z-]+)", README))
    commands = set(re.findall(r"antiphon ([a-z]+)[ `]", README))

    for target in {first or second for first, second in targets}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert commands <= COMMANDS.keys() | {"is"}

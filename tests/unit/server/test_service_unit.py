"""The unit for systemd: it starts what there is, and gives it the time that it takes."""

import argparse
import asyncio
import configparser
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon_cli import serve
from antiphon_server.config import Config
from antiphon_server.service_notices import ServiceNotices
from antiphon_server.settings import load_config

UNIT = Path(__file__).parents[3] / "deploy" / "systemd" / "antiphon.service"


@pytest.fixture(scope="module")
def service() -> dict[str, str]:
    """The unit's section about the process."""
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return dict(parser["Service"])


@pytest.fixture(scope="module")
def config(service: dict[str, str]) -> Config:
    """The settings that the unit starts the server with."""
    program, *argv = shlex.split(service["ExecStart"])
    assert Path(program).name == "antiphon"
    assert argv[0] == "serve"
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    arguments = parser.parse_args(argv[1:])
    return load_config(
        [f"store.path={arguments.store}", *arguments.set], arguments.config, {"HOME": "/nowhere"}
    )


def seconds(text: str) -> float:
    return float(text.removesuffix("h")) * 3600 if text.endswith("h") else float(text)


def test_unit_starts_the_server_with_flags_and_settings_that_exist(config: Config) -> None:
    assert config.logging.format == "json"


def test_what_is_kept_lies_in_folders_that_the_unit_makes(
    service: dict[str, str], config: Config
) -> None:
    assert config.store.path.startswith(f"/var/lib/{service['StateDirectory']}/")
    assert config.model.cache_dir == f"/var/cache/{service['CacheDirectory']}"
    assert service["Environment"] == f"TRITON_CACHE_DIR={config.model.cache_dir}/triton"
    assert service["ProtectSystem"] == "strict"


def test_server_has_the_time_to_drain_and_its_engine_outlives_the_signal(
    service: dict[str, str], config: Config
) -> None:
    assert seconds(service["TimeoutStopSec"]) > config.server.drain_limit_s
    assert service["KillMode"] == "mixed"


def test_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    copy = tmp_path / UNIT.name
    program = Path(sys.executable)
    # This machine has neither the checkout where the unit expects it nor its user.
    text = UNIT.read_text().replace("/opt/antiphon/.venv/bin/antiphon", str(program))
    text = text.replace("User=antiphon\nGroup=antiphon\n", "").replace("file:///opt", "file:///")
    copy.write_text(text)

    # Where there is no systemd its format at least is read by the tests above.
    command = [verify, "verify", "--man=no", str(copy)] if verify else ["true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert not complaints


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(60)
        yield listener


async def test_manager_is_told_of_readiness_life_and_end(manager: socket.socket) -> None:
    notices = ServiceNotices.from_environment(
        {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "120000"}
    )

    notices.tell_ready()
    life = asyncio.create_task(notices.keep_alive())
    await asyncio.sleep(0.1)
    life.cancel()
    notices.tell_stopping()

    told = [manager.recv(100).decode()]
    while told[-1] != "STOPPING=1":
        told.append(manager.recv(100).decode())
    assert told[0] == "READY=1"
    assert len(told) >= 3
    assert set(told[1:-1]) == {"WATCHDOG=1"}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "30000"},
        {"NOTIFY_SOCKET": "/no/such/socket", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/no/such/socket", "WATCHDOG_PID": str(os.getppid())},
    ],
)
async def test_server_without_a_manager_tells_nobody_and_goes_on(environ: dict[str, str]) -> None:
    notices = ServiceNotices.from_environment(environ)

    notices.tell_ready()
    notices.tell_stopping()

    async with asyncio.timeout(60):
        await notices.keep_alive()

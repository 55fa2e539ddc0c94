"""The server that is tortured: its processes, how they are killed, and what they hold."""

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import grpc
from antiphon.v1 import admin_pb2, admin_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.serve_command import engines_of
from torture.zygote import FrontEndSpec, environment, zygote_command

UP_LIMIT_S = 90.0
_NUMBERS = re.compile(r"\d+")
_FAST_RECONNECT = [
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.use_local_subchannel_pool", 1),
]


class Victim:
    """One server at an address that stays the same over its lives."""

    def __init__(
        self,
        directory: Path,
        zygote: asyncio.subprocess.Process,
        settings: Sequence[str],
        engine_command: Sequence[str] | None,
        checker_command: Sequence[str] | None,
    ) -> None:
        self.directory = directory
        self.target = f"unix:{directory}/main.sock"
        self.num_lives = 0
        """Counts beginnings and ends of front ends; a turn's log can't outlive one."""
        self.killed_s = 0.0
        """When something was killed last, on the monotonic clock."""
        self.num_kills = 0
        self.log_path = directory / "server.log"
        self._zygote = zygote
        self._front_end = 0
        self._admin_target = f"unix:{directory}/admin.sock"
        self._spec = FrontEndSpec(
            settings=[
                "model.name=tiny",
                f"server.listen={self.target}",
                f"server.admin_listen={self._admin_target}",
                f"store.path={directory}/store/sessions.db",
                "store.synchronous=normal",
                "logging.level=warning",
                *settings,
            ],
            engine_command=engine_command,
            checker_command=checker_command,
            home=str(directory),
            log_path=str(self.log_path),
        )

    @classmethod
    async def prepare(
        cls,
        directory: Path,
        settings: Sequence[str],
        engine_command: Sequence[str] | None,
        checker_command: Sequence[str] | None = None,
        command: Sequence[str] = zygote_command(),
    ) -> "Victim":
        """Starts the zygote, by `command`; the server itself is started by `start`."""
        (directory / "store").mkdir()
        zygote = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment(os.environ),
            start_new_session=True,
        )
        return cls(directory, zygote, settings, engine_command, checker_command)

    @property
    def front_end(self) -> int:
        """The front end's process id."""
        return self._front_end

    def stored_bytes(self) -> int:
        """Returns the size of the store."""
        return sum(path.stat().st_size for path in (self.directory / "store").iterdir())

    async def start(self) -> None:
        """Starts a front end, which starts its engine; doesn't wait for them."""
        self._front_end = int(await self._ask(f"start {self._spec.to_line()}"))
        self.num_lives += 1

    def channel(self) -> grpc.aio.Channel:
        """Returns a channel that finds the server soon after each of its starts."""
        return grpc.aio.insecure_channel(self.target, options=_FAST_RECONNECT)

    async def wait_up(self) -> bool:
        """Waits until health says that it serves; False: it took too long.

        A front end whose first engine is killed as it loads ends as one that can't start. It is
        started again, as whoever runs servers would.
        """
        deadline_s = time.monotonic() + UP_LIMIT_S
        async with self.channel() as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while time.monotonic() < deadline_s:
                if not self._lives():
                    await self.start()
                with contextlib.suppress(grpc.aio.AioRpcError):
                    request = health_pb2.HealthCheckRequest()
                    answer = await stub.Check(request, timeout=1, wait_for_ready=True)
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return True
                await asyncio.sleep(0.01)
        return False

    def _lives(self) -> bool:
        return Path(f"/proc/{self._front_end}").exists()

    async def kill(self, kind: str) -> bool:
        """Kills the engine, the front end or both; False: there was no engine to kill.

        A front end that was killed is not there again before `start`.
        """
        engines = engines_of(self._front_end)
        if kind == "engine" and not engines:
            return False
        self.num_kills += 1
        self.killed_s = time.monotonic()
        if kind != "front_end":
            for engine in engines:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(engine, signal.SIGKILL)
        if kind != "engine":
            self.num_lives += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._front_end, signal.SIGKILL)
        return True

    async def stats(self) -> admin_pb2.EngineStats:
        """Returns the engine's counters."""
        async with grpc.aio.insecure_channel(self._admin_target) as channel:
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            request = admin_pb2.GetEngineStatsRequest(model="models/tiny")
            return await stub.GetEngineStats(request, timeout=10, wait_for_ready=True)

    def open_files(self) -> Counter[str]:
        """Returns what the front end's file descriptors lead to, numbers left out."""
        found: Counter[str] = Counter()
        for path in Path(f"/proc/{self._front_end}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found[_NUMBERS.sub("", os.readlink(path))] += 1
        return found

    def store_files(self) -> list[str]:
        """Returns what lies beside the store."""
        return sorted(path.name for path in (self.directory / "store").iterdir())

    async def num_strays(self) -> int:
        """Returns how many processes there are beside the front end and one engine."""
        children: list[int] = json.loads(await self._ask("children"))
        others = [child for child in children if child != self._front_end]
        return len(others) + max(0, len(engines_of(self._front_end)) - 1)

    def stop(self) -> None:
        """Asks the front end to end well."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._front_end, signal.SIGTERM)

    async def gone(self) -> None:
        """Waits until the front end has ended, as after `stop`."""
        async with asyncio.timeout(UP_LIMIT_S):
            while self._lives():  # noqa: ASYNC110 - a process has no event
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Ends all processes."""
        assert self._zygote.stdin is not None
        self._zygote.stdin.close()
        await self._zygote.wait()

    async def _ask(self, line: str) -> str:
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.write(f"{line}\n".encode())
        answer = await asyncio.wait_for(self._zygote.stdout.readline(), UP_LIMIT_S)
        assert answer, "the zygote has ended"
        return answer.decode().strip()

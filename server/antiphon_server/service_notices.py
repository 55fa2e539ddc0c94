"""What the server tells the service manager that started it, if one wants to know."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

_MICROSECONDS: Final = 1_000_000


class ServiceNotices:
    """Sends notices as sd_notify(3) has them; without a manager it sends nothing. Never waits."""

    def __init__(self, *, address: str = "", watchdog_s: float = 0.0) -> None:
        """Sets where the manager listens, and within what time it wants a sign of life; 0: none."""
        # Names that begin with @ are not in the file system.
        self._address: Final = f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog_s: Final = watchdog_s

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "ServiceNotices":
        """Returns what the manager has asked for."""
        asked_us = environ.get("WATCHDOG_USEC", "")
        is_meant = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog_us = int(asked_us) if asked_us.isdecimal() and is_meant else 0
        return cls(address=environ.get("NOTIFY_SOCKET", ""), watchdog_s=watchdog_us / _MICROSECONDS)

    def tell_ready(self) -> None:
        """Says that calls are answered."""
        self._send("READY=1")

    def tell_stopping(self) -> None:
        """Says that the server is about to end."""
        self._send("STOPPING=1")

    async def keep_alive(self) -> None:
        """Gives signs of life for as long as the event loop turns; ends where none are wanted."""
        while self._address and self._watchdog_s:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_s / 3)

    def _send(self, notice: str) -> None:
        if not self._address:
            return
        # A manager that can't be reached must not keep the server from serving.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender,
        ):
            sender.sendto(notice.encode(), self._address)

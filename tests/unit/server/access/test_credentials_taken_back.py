"""Calls that are under way when their caller's credential is taken back, or expires."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from antiphon.v1.inference_pb2 import GenerateRequest, StreamGenerateResponse

from antiphon_engine.api.errors import AntiphonError
from antiphon_server.access.authentication import CredentialCheck
from antiphon_server.access.credentials import load_credentials
from antiphon_server.call_writer import current_writer
from antiphon_server.interceptors import RECHECK_INTERVAL_S, CallHandling, CallInterceptor
from antiphon_server.offload import Offload
from support.server import details_of
from support.tenants import bearer, token_entry, write_tokens

EXPIRES = datetime(2026, 5, 1, tzinfo=UTC)


@dataclass
class Telling:
    """A call that tells something whenever the test says so, to a caller who never speaks."""

    now: datetime = EXPIRES - timedelta(hours=1)
    clock_s: float = 0.0
    news: asyncio.Queue[StreamGenerateResponse] = field(default_factory=asyncio.Queue)

    async def answer(
        self, request: GenerateRequest, context: object
    ) -> AsyncIterator[StreamGenerateResponse]:
        writer = current_writer()
        assert writer is not None
        while True:
            told = await self.news.get()
            # As before a direct write; one that is refused is left to this handler.
            with suppress(AntiphonError):
                writer.check()
            yield told

    def handler(self) -> grpc.GenericRpcHandler:
        method = grpc.unary_stream_rpc_method_handler(
            self.answer, GenerateRequest.FromString, StreamGenerateResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler("antiphon.v1.Telling", {"Tell": method})


async def test_a_call_whose_credential_has_expired_is_told_nothing_more(tmp_path: Path) -> None:
    entry = token_entry("tk-a", "a", f"expires = {EXPIRES.isoformat()}")
    path = write_tokens(tmp_path / "tokens.toml", entry)
    credentials = load_credentials(path, key="server.tokens_file")
    offload, telling = Offload(num_threads=1, max_pending=8), Telling()
    check = CredentialCheck(lambda: credentials, needs_admin=False, now=lambda: telling.now)
    interceptor = CallInterceptor(
        CallHandling(
            count_call=nullcontext,
            authenticate=check,
            offload=offload,
            draw_request_id=lambda: "r",
            clock=lambda: telling.clock_s,
        )
    )
    server = grpc.aio.server(interceptors=[interceptor])
    server.add_generic_rpc_handlers([telling.handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, asyncio.timeout(60):
        call = channel.unary_stream("/antiphon.v1.Telling/Tell")(b"", metadata=bearer("tk-a"))
        telling.news.put_nowait(StreamGenerateResponse())
        assert await call.read() == b""
        telling.now = EXPIRES
        telling.clock_s += RECHECK_INTERVAL_S
        telling.news.put_nowait(StreamGenerateResponse())

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    await server.stop(0)
    offload.close()

    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert details_of(caught.value)["ErrorInfo"].reason == "BAD_CREDENTIAL"

"""Messages of callers without a credential are not even parsed."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from antiphon.v1.inference_pb2 import GenerateRequest, GenerateResponse

from antiphon_server.access.authentication import CredentialCheck
from antiphon_server.access.credentials import Credentials, load_credentials
from antiphon_server.interceptors import CallHandling, CallInterceptor
from antiphon_server.offload import Offload
from support.tenants import bearer, token_entry, write_tokens

NOW = datetime(2026, 5, 1, tzinfo=UTC)
CERTIFICATE = '[[certificates]]\nname = "a"\ntenant = "a"\n'


class Counting:
    """A method that counts the messages that are parsed for it."""

    def __init__(self) -> None:
        self.num_parsed = 0

    def parse(self, data: bytes) -> GenerateRequest:
        self.num_parsed += 1
        return GenerateRequest.FromString(data)

    async def answer(self, request: GenerateRequest, context: object) -> GenerateResponse:
        return GenerateResponse()

    def handler(self) -> grpc.GenericRpcHandler:
        method = grpc.unary_unary_rpc_method_handler(
            self.answer, self.parse, GenerateResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler("antiphon.v1.Counting", {"Answer": method})


@asynccontextmanager
async def calling(
    counting: Counting, credentials: Callable[[], Credentials]
) -> AsyncIterator[grpc.aio.UnaryUnaryMultiCallable]:
    """Serves the method to those who have one of the credentials; they are asked for each time."""
    offload = Offload(num_threads=1, max_pending=8)
    interceptor = CallInterceptor(
        CallHandling(
            count_call=nullcontext,
            authenticate=CredentialCheck(credentials, needs_admin=False, now=lambda: NOW),
            offload=offload,
            draw_request_id=lambda: "r",
        )
    )
    server = grpc.aio.server(interceptors=[interceptor])
    server.add_generic_rpc_handlers([counting.handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel.unary_unary("/antiphon.v1.Counting/Answer")
    await server.stop(0)
    offload.close()


@pytest.mark.parametrize(
    ("more", "metadata", "code", "num_parsed"),
    [
        ("", (), grpc.StatusCode.UNAUTHENTICATED, 0),
        ("", bearer("tk-wrong"), grpc.StatusCode.UNAUTHENTICATED, 0),
        ("", bearer("tk-a"), grpc.StatusCode.OK, 1),
        # Whose certificate it is, is known later.
        (CERTIFICATE, (), grpc.StatusCode.UNAUTHENTICATED, 1),
        (CERTIFICATE, bearer("tk-wrong"), grpc.StatusCode.UNAUTHENTICATED, 0),
    ],
)
async def test_messages_are_parsed_for_those_who_may_be_let_in(
    tmp_path: Path, more: str, metadata: object, code: grpc.StatusCode, num_parsed: int
) -> None:
    path = write_tokens(tmp_path / "tokens.toml", token_entry("tk-a", "a"), more)
    credentials, counting = load_credentials(path, key="server.tokens_file"), Counting()

    async with calling(counting, lambda: credentials) as method:
        seen = await method(b"", metadata=metadata).code()

    assert (seen, counting.num_parsed) == (code, num_parsed)


async def test_who_came_before_his_token_was_in_force_is_refused_for_that(tmp_path: Path) -> None:
    before = load_credentials(
        write_tokens(tmp_path / "before.toml", token_entry("tk-a", "a")), key="server.tokens_file"
    )
    after = load_credentials(
        write_tokens(tmp_path / "after.toml", token_entry("tk-b", "b")), key="server.tokens_file"
    )
    # The first look is at the call's metadata, the second at the call.
    looks = iter([before, after])
    counting = Counting()

    async with calling(counting, lambda: next(looks)) as method:
        seen = await method(b"", metadata=bearer("tk-b")).code()

    assert (seen, counting.num_parsed) == (grpc.StatusCode.UNAUTHENTICATED, 0)

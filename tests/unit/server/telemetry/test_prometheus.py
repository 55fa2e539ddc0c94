"""The endpoint that Prometheus reads."""

import asyncio
import ssl
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

import pytest
from antiphon.v1.session_pb2 import CreateSessionRequest
from structlog.testing import capture_logs

from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.handle import EngineState
from antiphon_server.listen import SocketAddress
from antiphon_server.telemetry.prometheus import MAX_CONNECTIONS, MAX_HEAD_BYTES, MAX_TURNED_AWAY
from antiphon_server.telemetry.server_metrics import FRESH_S
from support.certificates import Authority
from support.fake_engine import FakeEngine
from support.scrapes import Scraped, http, scrape
from support.server import loopback_config, running_server
from support.tenants import token_entry, write_tokens
from support.traces import request, submitted

LISTEN = "telemetry.prometheus_listen=127.0.0.1:0"


async def test_it_tells_of_requests_engines_and_the_front_end(tmp_path: Path):
    async with running_server(tmp_path, settings=[LISTEN]) as server:
        await server.inference.Generate(request(4))
        await server.sessions.CreateSession(CreateSessionRequest(session_id="a"))

        seen = await scrape(server.server.metering.address)

    assert seen.sum("gen_ai_server_time_to_first_token_seconds_count") == 1
    assert seen.sum("rpc_server_call_duration_seconds_count") == 2
    assert seen.sum("antiphon_sessions") == 1
    assert seen.sum("antiphon_engine_up", model="tiny") == 1
    assert seen.sum("antiphon_serving") == 1
    assert seen.labels("antiphon_kv_cache_info") == [
        {"model": "tiny", "block_size": "32", "num_gpu_blocks": "128"}
    ]


async def test_it_tells_what_waits_and_runs_now(tmp_path: Path):
    engine = FakeEngine(max_running=1)
    engine.hold()
    async with running_server(tmp_path, engine=engine, settings=[LISTEN]) as server:
        calls = [server.inference.Generate(request()) for _ in range(3)]
        await submitted(engine, 3)
        engine.step()

        seen = await scrape(server.server.metering.address)

        engine.release()
        await asyncio.gather(*calls)
    assert seen.values("antiphon_engine_requests_running") == [1]
    assert seen.values("antiphon_engine_requests_waiting") == [2]
    assert seen.values("antiphon_calls") == [3]


async def test_an_engine_that_is_down_is_told_as_down_and_has_no_figures(tmp_path: Path):
    engine = FakeEngine()
    async with running_server(tmp_path, engine=engine, settings=[LISTEN]) as server:
        before = await scrape(server.server.metering.address)
        engine.set_state(EngineState.DOWN)
        await asyncio.sleep(FRESH_S)

        seen = await scrape(server.server.metering.address)

    assert before.values("antiphon_engine_requests_running") == [0]
    assert seen.values("antiphon_engine_up") == [0]
    assert seen.values("antiphon_serving") == [0]
    assert seen.values("antiphon_engine_requests_running") == []


async def test_starts_of_the_engine_behind_its_first_are_counted(tmp_path: Path):
    engine = FakeEngine()
    async with running_server(tmp_path, engine=engine, settings=[LISTEN]) as server:
        for _ in range(2):
            for state in (EngineState.DOWN, EngineState.STARTING):
                engine.set_state(state)
        engine.set_state(EngineState.READY)

        seen = await scrape(server.server.metering.address)

    assert seen.values("antiphon_engine_restarts_total") == [2]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("HEAD /metrics HTTP/1.1\r\n\r\n", 200),
        ("GET /metrics?name=a HTTP/1.0\r\n\r\n", 200),
        ("GET http://a:9464/metrics?name=a HTTP/1.1\r\n\r\n", 200),
        ("GET HTTPS://a/metrics HTTP/1.1\r\n\r\n", 200),
        ("GET / HTTP/1.1\r\n\r\n", 404),
        ("GET http://a/ HTTP/1.1\r\n\r\n", 404),
        ("GET http://a?/metrics HTTP/1.1\r\n\r\n", 404),
        ("GET ftp://a/metrics HTTP/1.1\r\n\r\n", 404),
        ("POST /metrics HTTP/1.1\r\n\r\n", 405),
        ("nonsense\r\n\r\n", 400),
        (f"GET /metrics HTTP/1.1\r\na: {'b' * MAX_HEAD_BYTES}\r\n\r\n", 431),
    ],
)
async def test_what_it_does_not_serve_is_refused(tmp_path: Path, head: str, status: int):
    async with running_server(tmp_path, settings=[LISTEN]) as server:
        answer = await http(server.server.metering.address, head)

    assert answer.status == status
    assert bool(answer.body) == (not head.startswith("HEAD"))


async def test_connections_that_say_nothing_keep_nobody_out_for_long(tmp_path: Path):
    async with running_server(tmp_path, settings=[LISTEN]) as server:
        address = server.server.metering.address
        silent = [
            await asyncio.open_connection(address.host, address.port)
            for _ in range(MAX_CONNECTIONS)
        ]
        await silent[-1][1].drain()
        refused = await http(address)

        silent[0][1].close()
        async with asyncio.timeout(30):
            # Until its end has been seen.
            while (answer := await http(address)).status == HTTPStatus.SERVICE_UNAVAILABLE:
                pass
        for _, writer in silent:
            writer.close()

    assert refused.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert refused.headers["Retry-After"] == "10"
    assert "16 connections" in refused.body
    assert Scraped.parse(answer.body).values("antiphon_serving") == [1]


async def test_more_connections_than_can_be_answered_are_cut_off(tmp_path: Path):
    async with running_server(tmp_path, settings=[LISTEN]) as server:
        address = server.server.metering.address
        silent = [
            await asyncio.open_connection(address.host, address.port)
            for _ in range(MAX_CONNECTIONS + MAX_TURNED_AWAY)
        ]
        with pytest.raises((IndexError, ConnectionError)):  # It has no answer.
            await http(address)
        # Those that could be answered, and ask for nothing, are not waited for.
        told = await asyncio.gather(*(reader.read() for reader, _ in silent[MAX_CONNECTIONS:]))
        for _, writer in silent:
            writer.close()

    assert told == [b""] * MAX_TURNED_AWAY


async def test_it_asks_for_what_the_admin_port_asks_for(tmp_path: Path):
    tokens = write_tokens(
        tmp_path / "tokens.toml",
        token_entry("tk-ops", "ops", "admin = true"),
        token_entry("tk-acme", "acme"),
    )
    settings = [LISTEN, f"server.tokens_file={tokens}"]
    async with running_server(tmp_path, settings=settings) as server:

        async def status(fields: str) -> int:
            head = f"GET /metrics HTTP/1.1\r\n{fields}\r\n"
            return (await http(server.server.metering.address, head)).status

        assert await status("") == 401
        assert await status("Authorization: Bearer tk-acme\r\n") == 401
        assert await status("Authorization: Bearer tk-ops\r\n") == 200


async def test_it_is_encrypted_where_the_ports_are(tmp_path: Path):
    pair = Authority(tmp_path / "authority").sign("server")
    settings = [LISTEN, f"server.tls_cert={pair.cert}", f"server.tls_key={pair.key}"]
    with capture_logs() as log:
        async with running_server(tmp_path, settings=settings) as server:
            trusting = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
            trusting.check_hostname = False
            trusting.verify_mode = ssl.CERT_NONE

            answer = await http(server.server.metering.address, ssl=trusting)

    assert answer.status == 200
    assert [each["scheme"] for each in log if each["event"] == "metrics are served"] == ["https"]
    expiry = Scraped.parse(answer.body).values("antiphon_tls_certificate_expiry_seconds")
    assert expiry == [datetime(2099, 1, 1, tzinfo=UTC).timestamp()]


async def test_a_socket_in_the_file_system_will_do(tmp_path: Path):
    settings = [f"telemetry.prometheus_listen=unix:{tmp_path / 'm'}"]
    async with running_server(tmp_path, settings=settings) as server:
        assert isinstance(server.server.metering.address, SocketAddress)
        seen = await scrape(server.server.metering.address)

    assert seen.values("antiphon_serving") == [1]


def test_beyond_this_machine_it_wants_credentials(tmp_path: Path):
    with pytest.raises(StartupError, match=r"telemetry\.prometheus_listen .*tokens_file"):
        loopback_config(tmp_path, ["telemetry.prometheus_listen=0.0.0.0:0"])


async def test_a_port_that_is_taken_is_told(tmp_path: Path):
    async with running_server(tmp_path, settings=[LISTEN]) as server:
        taken = server.server.metering.address
        with pytest.raises(StartupError, match=rf"prometheus_listen: can't .*{taken.port}"):
            async with running_server(
                tmp_path / "other", settings=[f"telemetry.prometheus_listen={taken}"]
            ):
                pass


async def test_nothing_is_counted_where_nobody_asks(tmp_path: Path):
    async with running_server(tmp_path) as server:
        assert not server.server.metering.sinks
        assert server.server.metering.address is None

"""A whole server in the test's own process, on loopback ports, over any engine."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from antiphon.v1 import (
    admin_pb2_grpc,
    inference_pb2_grpc,
    model_pb2_grpc,
    session_pb2_grpc,
)
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2_grpc

from antiphon_engine.api.checkpoint import CheckpointInfo
from antiphon_engine.api.handle import EngineHandle
from antiphon_server.app import Server
from antiphon_server.config import Config
from antiphon_server.model_loading import load_text_side, served_model
from antiphon_server.served_model import ServedModel
from antiphon_server.settings import load_config
from support.fake_engine import FACTS, FakeEngine
from support.tiny_tokenizers import save_byte_level_tokenizer
from support.zygote import running_launcher

DETAIL_TYPES = (
    error_details_pb2.ErrorInfo,
    error_details_pb2.BadRequest,
    error_details_pb2.RetryInfo,
    error_details_pb2.RequestInfo,
    error_details_pb2.ResourceInfo,
    error_details_pb2.QuotaFailure,
    error_details_pb2.PreconditionFailure,
)

INFO = CheckpointInfo(
    architecture=FACTS.architecture,
    vocabulary_size=FACTS.vocabulary_size,
    context_tokens=FACTS.context_tokens,
    end_ids=frozenset(),
    sampling_defaults={},
    dtype=FACTS.dtype,
    num_layers=2,
    num_kv_heads=2,
    head_dim=16,
    model_bytes=1 << 20,
)
"""What the checkpoint of the fake engine would say of itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that answers, and channels to it."""

    server: Server
    engine: EngineHandle
    model: ServedModel
    config: Config
    channel: grpc.aio.Channel
    admin_channel: grpc.aio.Channel

    @property
    def target(self) -> str:
        return str(self.server.address)

    @property
    def admin_target(self) -> str:
        return str(self.server.admin_address)

    @property
    def inference(self) -> inference_pb2_grpc.InferenceServiceStub:
        return inference_pb2_grpc.InferenceServiceStub(self.channel)

    @property
    def sessions(self) -> session_pb2_grpc.SessionServiceStub:
        return session_pb2_grpc.SessionServiceStub(self.channel)

    @property
    def models(self) -> model_pb2_grpc.ModelServiceStub:
        return model_pb2_grpc.ModelServiceStub(self.channel)

    @property
    def tokenizer(self) -> model_pb2_grpc.TokenizerServiceStub:
        return model_pb2_grpc.TokenizerServiceStub(self.channel)

    @property
    def admin(self) -> admin_pb2_grpc.AdminServiceStub:
        return admin_pb2_grpc.AdminServiceStub(self.admin_channel)

    @property
    def health(self) -> health_pb2_grpc.HealthStub:
        return health_pb2_grpc.HealthStub(self.channel)


@asynccontextmanager
async def running_server(
    directory: Path,
    *,
    engine: EngineHandle | None = None,
    checkpoint: Path | None = None,
    info: CheckpointInfo = INFO,
    settings: Sequence[str] = (),
    checker_command: Sequence[str] | None = None,
) -> AsyncIterator[RunningServer]:
    """Serves `models/tiny` until the block ends; the engine is the caller's to close.

    Args:
        directory: Where the session store is kept: a second server on it finds the sessions of
            the first.
        engine: Default: a FakeEngine that steps by itself.
        checkpoint: A directory with a tokenizer; default: a tiny one of 1000 tokens.
        info: What the checkpoint says of itself.
        settings: `section.key=value` each, over loopback ports that the system chooses.
        checker_command: Runs what looks into constraints; default: what does in use.
    """
    checkpoint = checkpoint or save_byte_level_tokenizer(directory / "tokenizer")
    config = loopback_config(directory, settings)
    engine = engine or FakeEngine()
    text = load_text_side(config, checkpoint, info)
    launcher = running_launcher()
    checker_command = checker_command or (launcher and [*launcher, "antiphon_checker"])
    model = served_model(config, text, engine, checker_command=checker_command)
    server = Server(config)
    try:
        await server.open([model])
        async with (
            grpc.aio.insecure_channel(str(server.address)) as channel,
            grpc.aio.insecure_channel(str(server.admin_address)) as admin_channel,
        ):
            yield RunningServer(
                server=server,
                engine=engine,
                model=model,
                config=config,
                channel=channel,
                admin_channel=admin_channel,
            )
    finally:
        await server.close(0)


def loopback_config(directory: Path, settings: Sequence[str] = ()) -> Config:
    """Returns settings for a server on loopback ports with its store in the directory."""
    return load_config(
        [
            "model.name=tiny",
            "server.listen=127.0.0.1:0",
            "server.admin_listen=127.0.0.1:0",
            f"store.path={directory / 'sessions.db'}",
            "store.synchronous=normal",
            *settings,
        ],
        None,
        {"HOME": str(directory)},
    )


def details_of(error: grpc.aio.AioRpcError) -> Mapping[str, Message]:
    """Returns the details of a failed call, by the names of their types."""
    trailers = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert (status.code, status.message) == (error.code().value[0], error.details())
    found = {}
    for packed in status.details:
        for kind in DETAIL_TYPES:
            message = kind()
            if packed.Unpack(message):
                found[kind.DESCRIPTOR.name] = message
    return found

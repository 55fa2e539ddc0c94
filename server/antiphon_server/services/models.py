"""ModelService: what is served and what requests may ask of it."""

from collections.abc import Mapping
from typing import Final

from antiphon.v1 import model_pb2, model_pb2_grpc
from grpc.aio import ServicerContext

from antiphon_engine.api.errors import FieldViolation, InvalidRequest
from antiphon_server.served_model import ServedModel
from antiphon_server.served_models import find_model

DEFAULT_PAGE_SIZE: Final = 50
MAX_PAGE_SIZE: Final = 1000


class ModelService(model_pb2_grpc.ModelServiceServicer):
    """Tells of the models that this server has."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = models

    async def GetModel(
        self,
        request: model_pb2.GetModelRequest,
        context: ServicerContext[model_pb2.GetModelRequest, model_pb2.Model],
    ) -> model_pb2.Model:
        """Returns one model."""
        if not request.name:
            raise InvalidRequest(FieldViolation("name", "is empty; write models/{model}"))
        return find_model(self._models, request.name).describe()

    async def ListModels(
        self,
        request: model_pb2.ListModelsRequest,
        context: ServicerContext[model_pb2.ListModelsRequest, model_pb2.ListModelsResponse],
    ) -> model_pb2.ListModelsResponse:
        """Returns a page of models, by name; a page's token is the last name of the page before."""
        size = request.page_size or DEFAULT_PAGE_SIZE
        if size > MAX_PAGE_SIZE:
            raise InvalidRequest(
                FieldViolation("page_size", f"is {size}; at most {MAX_PAGE_SIZE} are sent at once")
            )
        names = sorted(self._models)
        if request.page_token and request.page_token not in names:
            raise InvalidRequest(
                FieldViolation("page_token", "is not one that this server gave; begin without one")
            )
        rest = [name for name in names if name > request.page_token]
        page = rest[:size]
        return model_pb2.ListModelsResponse(
            models=[self._models[name].describe() for name in page],
            next_page_token=page[-1] if len(rest) > size else "",
        )

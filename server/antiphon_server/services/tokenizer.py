"""TokenizerService: text to tokens and back, by the model's own tokenizer and chat template."""

from collections.abc import Mapping
from typing import Final

from antiphon.v1 import model_pb2, model_pb2_grpc
from grpc.aio import ServicerContext

from antiphon_server.answer_size import check_answer_size
from antiphon_server.offload import Offload
from antiphon_server.prompt import asks_to_think, render_prompt
from antiphon_server.served_model import ServedModel
from antiphon_server.served_models import find_model
from antiphon_server.text.tokenizer import Tokenizer
from antiphon_server.validation import check_config, check_tool_choice
from antiphon_server.validation_fields import Violations

_SHORTER: Final = "send the text in parts"


class TokenizerService(model_pb2_grpc.TokenizerServiceServicer):
    """Works off the event loop, since a long text takes long."""

    def __init__(self, models: Mapping[str, ServedModel], offload: Offload) -> None:
        self._models = models
        self._offload = offload

    async def Tokenize(
        self,
        request: model_pb2.TokenizeRequest,
        context: ServicerContext[model_pb2.TokenizeRequest, model_pb2.TokenizeResponse],
    ) -> model_pb2.TokenizeResponse:
        """Returns the tokens of a text."""
        model = find_model(self._models, request.model)
        response = await self._offload.run(_tokenize, model.tokenizer, request)
        check_answer_size(response, hint=_SHORTER)
        return response

    async def Detokenize(
        self,
        request: model_pb2.DetokenizeRequest,
        context: ServicerContext[model_pb2.DetokenizeRequest, model_pb2.DetokenizeResponse],
    ) -> model_pb2.DetokenizeResponse:
        """Returns the text of tokens."""
        model = find_model(self._models, request.model)
        response = await self._offload.run(_detokenize, model, request)
        check_answer_size(response, hint="send the tokens in parts")
        return response

    async def RenderPrompt(
        self,
        request: model_pb2.RenderPromptRequest,
        context: ServicerContext[model_pb2.RenderPromptRequest, model_pb2.RenderPromptResponse],
    ) -> model_pb2.RenderPromptResponse:
        """Returns a prompt as the model would get it."""
        model = find_model(self._models, request.model)
        check_config(request.config, model=model, path="config")
        check_tool_choice(request.config, request.prompt.conversation.tools, "config")
        rendered = await render_prompt(
            request.prompt,
            model=model,
            offload=self._offload,
            path="prompt",
            reasoning=asks_to_think(request.config.reasoning),
        )
        text, token_ids = rendered.text, rendered.token_ids
        if request.prompt.WhichOneof("kind") == "token_ids":
            text = await self._offload.run(
                model.tokenizer.decode, token_ids, skip_special_tokens=False
            )
        response = model_pb2.RenderPromptResponse(text=text, token_ids=token_ids)
        check_answer_size(response, hint=_SHORTER)
        return response


def _tokenize(
    tokenizer: Tokenizer, request: model_pb2.TokenizeRequest
) -> model_pb2.TokenizeResponse:
    token_ids = tokenizer.encode(
        request.text,
        add_special_tokens=request.add_special_tokens,
        allow_special_tokens=request.allow_special_tokens,
    )
    return model_pb2.TokenizeResponse(token_ids=token_ids)


def _detokenize(
    model: ServedModel, request: model_pb2.DetokenizeRequest
) -> model_pb2.DetokenizeResponse:
    vocabulary_size = model.vocabulary_size
    if request.token_ids and max(request.token_ids) >= vocabulary_size:
        violations = Violations()
        for index, token_id in enumerate(request.token_ids):
            violations.check_token_id(f"token_ids[{index}]", token_id, vocabulary_size)
        violations.raise_if_any()
    text = model.tokenizer.decode(
        request.token_ids, skip_special_tokens=request.skip_special_tokens
    )
    return model_pb2.DetokenizeResponse(text=text)

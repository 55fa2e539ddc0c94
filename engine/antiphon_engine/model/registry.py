"""The models that come with the engine."""

from antiphon_engine.model.base import ModelRegistry
from antiphon_engine.model.config import SUPPORTED_ARCHITECTURES
from antiphon_engine.model.transformer import Transformer


def default_registry() -> ModelRegistry:
    """Returns a new registry of all supported architectures."""
    return ModelRegistry(dict.fromkeys(SUPPORTED_ARCHITECTURES, Transformer))

"""The models that a server has, by name."""

from collections.abc import Mapping

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.served_model import ServedModel


def find_model(models: Mapping[str, ServedModel], name: str) -> ServedModel:
    """Returns the model of a name; the empty name means the only one.

    Args:
        models: By name, `models/{model}`; at least one.
        name: As the request has it.

    Raises:
        AntiphonError: MODEL_NOT_FOUND; says which there are.
    """
    if not name and len(models) == 1:
        return next(iter(models.values()))
    if model := models.get(name):
        return model
    served = ", ".join(sorted(models)[:8])
    raise AntiphonError(
        ErrorReason.MODEL_NOT_FOUND,
        f"model {name[:128]!r} is not served here; there is {served}",
        metadata={"model": name[:128]},
    )

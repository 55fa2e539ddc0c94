"""Servers of models that call tools; the tests of a run share them."""

from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio

from support.calling_models import FAMILIES, CallingModel, calling_models


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def models(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Mapping[str, CallingModel]]:
    async with calling_models(tmp_path_factory.mktemp("calling")) as found:
        yield found


@pytest.fixture(params=FAMILIES)
def model(models: Mapping[str, CallingModel], request: pytest.FixtureRequest) -> CallingModel:
    """A model of each family that doesn't think."""
    return models[request.param]


@pytest.fixture
def thinking(models: Mapping[str, CallingModel]) -> CallingModel:
    """A model that thinks before it answers, and calls tools."""
    return models["thinking"]


@pytest.fixture
def hermes(models: Mapping[str, CallingModel]) -> CallingModel:
    """A model of one family, for what doesn't hang on the family."""
    return models["hermes"]

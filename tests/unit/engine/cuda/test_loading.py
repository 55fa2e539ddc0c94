"""Which devices the kernels run on, and what is for them alone."""

from pathlib import Path

import pytest

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_engine.loading import lacking_capability, load_model


@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (12, 1)])
def test_kernels_run_from_hopper_on(capability):
    assert lacking_capability(capability) is None


@pytest.mark.parametrize("capability", [(7, 5), (8, 9)])
def test_older_devices_are_told_what_they_lack(capability):
    said = lacking_capability(capability)

    assert said is not None
    assert "9.0 is needed" in said
    assert ".".join(map(str, capability)) in said


@pytest.mark.parametrize("backend", ["triton", "flashinfer"])
def test_backends_of_attention_are_refused_where_others_compute(tmp_path: Path, backend):
    config = EngineConfig(attention_backend=backend)

    with pytest.raises(StartupError, match=rf"engine\.attention_backend is {backend}.*on cuda"):
        load_model(config, tmp_path)

"""Which devices the kernels run on."""

import pytest

from antiphon_engine.loading import lacking_capability


@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (12, 1)])
def test_kernels_run_from_hopper_on(capability):
    assert lacking_capability(capability) is None


@pytest.mark.parametrize("capability", [(7, 5), (8, 9)])
def test_older_devices_are_told_what_they_lack(capability):
    said = lacking_capability(capability)

    assert said is not None
    assert "9.0 is needed" in said
    assert ".".join(map(str, capability)) in said

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon_engine.api.errors import InvalidRequest
from antiphon_server.sessions.page_tokens import page_limit, read_page_token, write_page_token

LISTED = ["sessions", "tenant", "k=v"]
KINDS = (int, str)


def test_a_token_leads_back_to_its_position():
    token = write_page_token([7, "s"], listed=LISTED)

    assert read_page_token(token, listed=LISTED, kinds=KINDS) == [7, "s"]
    assert read_page_token("", listed=LISTED, kinds=KINDS) is None


def test_a_token_of_another_list_is_refused():
    token = write_page_token([7, "s"], listed=LISTED)

    with pytest.raises(InvalidRequest, match="page_token"):
        read_page_token(token, listed=["sessions", "other", "k=v"], kinds=KINDS)


@given(st.text(min_size=1, max_size=60))
def test_made_up_tokens_are_refused(token: str):
    with pytest.raises(InvalidRequest, match="page_token"):
        read_page_token(token, listed=LISTED, kinds=KINDS)


@pytest.mark.parametrize(
    "position",
    [[7], [7, "s", 1], ["7", "s"], [True, "s"], [-1, "s"], [1 << 63, "s"], [7, "\ud800"], {}, None],
)
def test_tokens_that_were_made_up_well_are_refused(position: object):
    token = write_page_token(position, listed=LISTED)

    with pytest.raises(InvalidRequest, match="page_token"):
        read_page_token(token, listed=LISTED, kinds=KINDS)


def test_pages_have_a_default_and_a_most():
    assert page_limit(0) == 50
    assert page_limit(1000) == 1000
    with pytest.raises(InvalidRequest, match="page_size"):
        page_limit(1001)

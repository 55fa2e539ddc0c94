import pytest

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.text.chat_template import ChatTemplate
from antiphon_server.text.prompt_renderer import PromptRenderer
from antiphon_server.text.tokenizer import Tokenizer
from support import chat_templates
from support.session_rows import user
from support.tiny_tokenizers import save_byte_level_tokenizer

CONTEXT_TOKENS = 64


@pytest.fixture
def tokenizer(tmp_path):
    return Tokenizer.load(save_byte_level_tokenizer(tmp_path))


@pytest.fixture
def renderer(tokenizer):
    template = ChatTemplate({"default": chat_templates.CHATML_WITH_TOOLS})
    return PromptRenderer(tokenizer, template, max_tokens=CONTEXT_TOKENS)


def refusal_of(render) -> AntiphonError:
    with pytest.raises(AntiphonError) as refused:
        render()
    return refused.value


def test_a_text_far_beyond_the_context_is_refused_by_its_beginning(renderer):
    text = "q9z " * 1_000_000

    error = refusal_of(lambda: renderer.render_text(text, allow_special_tokens=False))

    assert error.reason is ErrorReason.CONTEXT_LENGTH_EXCEEDED
    assert error.metadata["limit"] == str(CONTEXT_TOKENS)
    assert CONTEXT_TOKENS < int(error.metadata["prompt"]) <= 16 * CONTEXT_TOKENS
    assert "of the prompt's 4000000 characters" in error.message


def test_a_conversation_far_beyond_the_context_is_refused_by_its_beginning(renderer):
    items = [user("q9z " * 1_000_000)]

    error = refusal_of(lambda: renderer.render_conversation(items))

    assert error.reason is ErrorReason.CONTEXT_LENGTH_EXCEEDED


def test_what_follows_an_answer_is_refused_by_its_beginning(renderer, tokenizer):
    kept = tokenizer.encode("ok", add_special_tokens=False, allow_special_tokens=False)
    items = [user("q9z " * 1_000_000)]

    error = refusal_of(lambda: renderer.render_continuation(items, kept_tail=kept))

    assert error.reason is ErrorReason.CONTEXT_LENGTH_EXCEEDED


def test_a_text_near_the_context_is_encoded_whole_and_judged_by_its_tokens(renderer, tokenizer):
    text = "q9z " * (4 * CONTEXT_TOKENS)

    rendered = renderer.render_text(text, allow_special_tokens=False)

    whole = tokenizer.encode(text, add_special_tokens=True, allow_special_tokens=False)
    assert rendered.token_ids == whole
    assert len(whole) > CONTEXT_TOKENS

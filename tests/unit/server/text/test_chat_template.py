import json
import threading
from datetime import datetime

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from antiphon_engine.api.errors import AntiphonError, ErrorReason, StartupError
from antiphon_server.text.chat_template import MAX_MESSAGE_CHARS, ChatTemplate, TemplateInput
from antiphon_server.text.template_sandbox import TemplateLimits
from support import chat_templates

NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
ASK = {"role": "user", "content": 'Is é < "b" & c\'s?'}
ANSWER = {"role": "assistant", "content": "Yes.\n"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "finds <b> & \"é\" 'x'",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        },
    }
]
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "id": "c1", "function": {"name": "look_up", "arguments": {"q": "é<"}}}
    ],
}
RESULT = {"role": "tool", "content": '{"found": 2}', "tool_call_id": "c1", "name": "look_up"}
THOUGHT = {"role": "assistant", "content": "ok", "reasoning_content": "hm", "thinking": "hm"}
CONVERSATIONS = (
    [ASK],
    [ASK, ANSWER, ASK],
    [{"role": "system", "content": " be brief "}, ASK],
    [ASK, THOUGHT, ASK],
    [ASK, CALL, RESULT],
    [ASK, ASK],
)


def _render(source: str, messages=(ASK,), **others) -> str:
    template = ChatTemplate({"default": source})
    return template.render(TemplateInput(messages=list(messages), named_tokens=NAMED, **others))


def _refusal(source: str, *, limits: TemplateLimits | None = None) -> AntiphonError:
    template = ChatTemplate({"default": source}, limits=limits)
    with pytest.raises(AntiphonError) as raised:
        template.render(TemplateInput(messages=[ASK], named_tokens={}))
    assert raised.value.reason is ErrorReason.TEMPLATE_ERROR
    return raised.value


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("name", chat_templates.ALL)
def test_renders_what_transformers_renders(name, messages, tools):
    source = chat_templates.ALL[name]
    try:
        (expected,), _ = render_jinja_template(
            [messages], tools=tools, chat_template=source, add_generation_prompt=True, **NAMED
        )
    except Exception as error:
        expected = error

    if isinstance(expected, str):
        assert _render(source, messages, tools=tools) == expected
    else:
        with pytest.raises(AntiphonError, match=str(expected)):
            _render(source, messages, tools=tools)


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}\n  {% if true %}\nx\n  {% endif %}\n{% endfor %}\n",
        "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ messages | tojson(true) }}",
        "{% generation %}{{ messages[0].content }}{% endgeneration %}",
        "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}"
        "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) ~ m('a') ~ none ~ 1.5 }}{{ missing }}",
        "{% set ns = namespace(a=1, self=2) %}{% for i in range(3) %}{% set ns.a = ns.a + i %}"
        "{% endfor %}{{ ns.a }}{{ ns.self }}{{ dict(a=1) }}{{ dict.fromkeys('ab', 1) }}",
        "{{ ['a', 'b'] | join(', ') }}{{ 'a-b' | replace('-', '+') }}"
        "{{ '%s %02d' | format('a', 3) }}{{ '{:>4}'.format(1) }}"
        "{{ 'x' | center(5) }}|{{ 'a\nb' | indent(2) }}{{ messages | string }}{{ 'ab' | list }}"
        "{{ [1, 2, 3] | batch(2) | list }}{{ 'a %s' % 'b' }}{{ 'ab' * 2 }}{{ 2 ** 5 }}"
        "{{ messages | map(attribute='role') | join('|') }}{{ 'a,b'.split(',') }}",
        "{% set x %}a{% for i in range(2) %}b{% endfor %}{% endset %}{{ x | trim }}{{ x.upper() }}",
        "{%- for m in messages recursive %}{{ loop.index }}{{ m.role }}{%- endfor %}",
        "{% call(x) wrap() %}{{ x }}{% endcall %}{% macro wrap() %}[{{ caller(3) }}]{% endmacro %}",
    ],
)
def test_the_language_is_that_of_transformers(source):
    try:
        (expected,), _ = render_jinja_template(
            [[ASK, ANSWER]], chat_template=source, add_generation_prompt=True, **NAMED
        )
    except Exception:
        expected = None

    if expected is None:
        _refusal(source)
    else:
        assert _render(source, [ASK, ANSWER]) == expected


def test_the_clock_is_the_one_given():
    template = ChatTemplate(
        {"default": "{{ strftime_now('%d %b %Y') }}"}, now=lambda: datetime(2031, 5, 1)
    )

    assert template.render(TemplateInput(messages=[ASK], named_tokens={})) == "01 May 2031"


def test_a_template_says_itself_what_it_refuses():
    error = _refusal("{{ raise_exception('no ' + 'narrators ' * 200) }}")

    assert error.message.startswith("no narrators narrators")
    assert len(error.message) == MAX_MESSAGE_CHARS


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% set ns = namespace(_a=1) %}",
        "{{ missing.attribute }}",
        "{{ 1 // 0 }}",
        "{{ [][3].x }}",
        "{{ 1 + 'a' }}",
        "{% include 'other' %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_what_a_template_may_not_do_ends_as_an_error_of_its_own(source):
    _refusal(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}",
        "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
    ],
)
def test_an_endless_template_ends_in_time_and_leaves_nothing_running(source):
    before = threading.active_count()

    error = _refusal(source, limits=TemplateLimits(time_s=0.2))

    assert "takes too long" in error.message
    assert threading.active_count() == before


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10 ** 10 }}",
        "{{ [1] * 10 ** 9 }}",
        "{{ 2 ** (10 ** 9) }}",
        "{{ 'a'.ljust(10 ** 10) }}",
        "{{ 'a' | center(10 ** 10) }}",
        "{{ 'a' | indent(10 ** 10, true) }}",
        "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
        "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
        "{{ ('a' * 100000) | join('b' * 100000) }}",
        "{{ ('a' * 100000).join('b' * 100000) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 999999999) }}",
        "{{ messages | tojson(indent=999999999) }}",
        "{{ [1] | batch(10 ** 9, 1) | list }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}"
        "{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% endfor %}{{ ns.x | tojson }}",
        "{% set x %}{% for i in range(99999) %}" + "y" * 5000 + "{% endfor %}{% endset %}",
    ],
)
def test_no_single_operation_fills_the_memory(source):
    limits = TemplateLimits(time_s=30, num_chars=1 << 22)

    assert "too" in _refusal(source, limits=limits).message


def test_templates_render_in_several_threads_at_once():
    template = ChatTemplate({"default": chat_templates.CHATML_WITH_TOOLS})
    texts: dict[int, str] = {}

    def render(number: int) -> None:
        message = {"role": "user", "content": f"number {number}"}
        texts[number] = template.render(TemplateInput(messages=[message] * 50, named_tokens={}))

    threads = [threading.Thread(target=render, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)

    assert all(texts[number].count(f"number {number}") == 50 for number in range(8))


def test_what_a_template_takes_is_known():
    takes = {
        name: (
            ChatTemplate({"default": source}).takes_tools,
            ChatTemplate({"default": source}).takes_reasoning,
        )
        for name, source in chat_templates.ALL.items()
    }

    assert takes == {
        "chatml_with_tools": (True, False),
        "thinking": (False, True),
        "headers": (False, False),
        "alternating": (False, False),
        "empty_thought_when_last": (False, False),
    }


@pytest.mark.parametrize("reasoning", [None, True, False])
def test_the_switch_for_thinking_reaches_the_template(reasoning):
    switch = {} if reasoning is None else {"enable_thinking": reasoning}
    (expected,), _ = render_jinja_template(
        [[ASK]], chat_template=chat_templates.THINKING, add_generation_prompt=True, **switch
    )

    assert _render(chat_templates.THINKING, reasoning=reasoning) == expected


def _write_settings(directory, template) -> None:
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))


def _render_loaded(template: ChatTemplate, tools=None) -> str:
    return template.render(TemplateInput(messages=[ASK], tools=tools, named_tokens={}))


def test_a_checkpoint_may_have_no_template(tmp_path):
    assert ChatTemplate.load(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert ChatTemplate.load(tmp_path) is None


def test_the_template_file_goes_before_the_settings_and_an_override_before_both(tmp_path):
    _write_settings(tmp_path, "settings")
    assert _render_loaded(ChatTemplate.load(tmp_path)) == "settings"

    (tmp_path / "chat_template.jinja").write_text("file")
    assert _render_loaded(ChatTemplate.load(tmp_path)) == "file"

    (tmp_path / "own.jinja").write_text("own")
    assert _render_loaded(ChatTemplate.load(tmp_path, override=tmp_path / "own.jinja")) == "own"


def test_of_named_templates_the_one_for_tools_is_used_where_there_are_tools(tmp_path):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    _write_settings(tmp_path, named)
    template = ChatTemplate.load(tmp_path)

    assert template.takes_tools
    assert _render_loaded(template) == "plain"
    assert _render_loaded(template, TOOLS) == "tools"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a\n{% for %}", "line 2"),
        ("{% endfor %}", "line 1"),
        ([{"name": "other", "template": "x"}], "must be named default"),
        ([{"name": "default"}], "lacks a name or a template"),
        (["default"], "lacks a name or a template"),
        (7, "neither text nor a list"),
    ],
)
def test_a_broken_template_fails_at_start(tmp_path, content, words):
    _write_settings(tmp_path, content)

    with pytest.raises(StartupError, match=words):
        ChatTemplate.load(tmp_path)


def test_an_override_that_is_not_there_fails_at_start(tmp_path):
    with pytest.raises(StartupError, match="is not there"):
        ChatTemplate.load(tmp_path, override=tmp_path / "none.jinja")

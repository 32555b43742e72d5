"""Which format a chat template writes: templates as the models' own have them."""

from types import SimpleNamespace

import jinja2
import pytest

from sampler.serve.detect import guess_format

USERS = "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}{% else %}"
# The loops over calls as Qwen2.5, EXAONE 4.0, Qwen3-Coder and Kimi K2 have them.
QWEN = (
    "{% for c in m.tool_calls %}{% set f = c.function %}\n<tool_call>\n"
    '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>{% endfor %}'
)
EXAONE = QWEN.replace("<tool_call>\n", "<tool_call>").replace("\n</tool_call>", "</tool_call>")
CODER = (
    "{% for c in m.tool_calls %}\n<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n"
    "{% endfor %}</function>\n</tool_call>{% endfor %}"
)
KIMI = (
    "<|tool_calls_section_begin|>{% for c in m.tool_calls %}<|tool_call_begin|>{{ c['id'] }}"
    "<|tool_call_argument_begin|>{% if c.function.arguments is string %}{{ c.function.arguments }}"
    "{% else %}{{ c.function.arguments | tojson }}{% endif %}<|tool_call_end|>{% endfor %}"
    "<|tool_calls_section_end|>"
)


def tokenizer(calls, *, tools="{% if tools %}tools{% endif %}"):
    template = tools + USERS + calls + "{% endif %}{% endfor %}"

    def apply(messages, tools=None, tokenize=True):
        return jinja2.Environment().from_string(template).render(messages=messages, tools=tools)

    return SimpleNamespace(chat_template=template, apply_chat_template=apply)


@pytest.mark.parametrize(
    ("calls", "name"),
    [(QWEN, "hermes"), (EXAONE, "exaone"), (CODER, "qwen3_coder"), (KIMI, "kimi_k2")],
)
def test_the_format_that_the_template_writes(calls, name):
    assert guess_format(tokenizer(calls))[0].name == name


def test_whitespace_may_differ():
    spaced = QWEN.replace("<tool_call>\n", "<tool_call>\n\n")
    assert guess_format(tokenizer(spaced))[0].name == "hermes"


def test_the_bundled_model(loaded):
    assert guess_format(loaded.tokenizer)[0].name == "hermes"


def test_a_template_that_knows_no_tools_leaves_it_to_the_prompt():
    fmt, why = guess_format(tokenizer("{{ m.content }}", tools=""))
    assert fmt.name == "hermes"
    assert "knows no tools" in why


def test_where_no_call_is_written_the_markers_decide():
    told = "{% if tools %}Answer with <|tool_calls_section_begin|>{% endif %}"
    assert guess_format(tokenizer("{{ m.content }}", tools=told))[0].name == "kimi_k2"


def test_several_or_none_is_an_error_with_the_names():
    with pytest.raises(ValueError, match="no calls of a known format; name one: hermes"):
        guess_format(tokenizer("{{ m.content }}"))
    both = "{% if tools %}<tool_call> or <|tool_calls_section_begin|>{% endif %}"
    with pytest.raises(ValueError, match=r"fits several formats; name one: .*hermes.*kimi_k2"):
        guess_format(tokenizer("{{ m.content }}", tools=both))

import pytest
from jinja2 import Environment

from kvmesh.core.chat.template_format import sglang_content_format, vllm_content_format

LOOP = "{% for message in messages %}BODY{% endfor %}"


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (LOOP.replace("BODY", "{{ message.content }}"), "string"),
        (LOOP.replace("BODY", "{% for c in message.content %}{% endfor %}"), "openai"),
        (LOOP.replace("BODY", "{% for c in message['content'][1:] %}{% endfor %}"), "openai"),
        (LOOP.replace("BODY", "{% for c in message['content'] | list %}{% endfor %}"), "openai"),
        (LOOP.replace("BODY", "{% for c in message[key] %}{% endfor %}"), "string"),
        (LOOP.replace("BODY", "{% for c in message.tool_calls %}{% endfor %}"), "string"),
        (LOOP.replace("BODY", "{% for c in content %}{% endfor %}"), "openai"),
        ("{% for c in other().content %}{% endfor %}", "string"),
        (
            (
                "{% set rest = messages[1:] %}{% set rest = rest %}{% set a, b = messages %}"
                "{% for m in rest %}{% for c in m.content %}{% endfor %}{% endfor %}"
            ),
            "openai",
        ),
        (
            (
                "{% macro show(role, body) %}{% for c in body %}{% endfor %}{% endmacro %}"
                "{% for m in messages %}{{ show(m.role, m.content) }}{% endfor %}"
            ),
            "openai",
        ),
        (
            (
                "{% macro show(body) %}{% for c in body %}{% endfor %}{% endmacro %}"
                "{% for m in messages %}{{ show(body=m.content) }}{{ show(x=1) }}{% endfor %}"
            ),
            "openai",
        ),
        (
            (
                "{% macro show(content) %}{% for c in content %}{% endfor %}{% endmacro %}"
                "{% for m in messages %}{{ show(m.tools) }}{{ m.get('x') }}{% endfor %}"
            ),
            "string",
        ),
    ],
)
def test_vllm_looks_for_a_loop_over_the_content(template: str, wanted: str) -> None:
    assert vllm_content_format(Environment(autoescape=False).parse(template)) == wanted  # noqa: S701


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("{{ messages[0].content }}", "string"),
        ("{{ messages[0].content }}{# vision #}", "openai"),
        ("{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}", "openai"),
        ("{% for x in messages %}{% for c in x.content %}{% endfor %}{% endfor %}", "string"),
    ],
)
def test_sglang_also_goes_by_words_and_loop_names(template: str, wanted: str) -> None:
    tree = Environment(autoescape=False).parse(template)  # noqa: S701

    assert sglang_content_format(tree, template) == wanted

import pytest

from kvmesh.core.chat.template_format import looped_format

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
def test_a_loop_over_the_content_is_found_wherever_it_stands(template: str, wanted: str) -> None:
    assert looped_format(template) == wanted

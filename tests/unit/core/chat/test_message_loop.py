"""Which templates print their messages one by one, and what of a chat these prints depend on."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from kvmesh.core.chat.message_loop import MARK, MessageLoop
from kvmesh.core.chat.template import ChatTemplate
from kvmesh.core.chat.template_call import TemplateCall

MESSAGES: list[dict[str, object]] = [{"role": role, "content": role[0]} for role in "abca"]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {}, lambda: datetime(2026, 1, 2, tzinfo=UTC), origin="test")


def looped(body: str, head: str = "") -> MessageLoop | None:
    return template(f"{head}{{% for m in messages %}}{{{{ m.role }}}}{body}{{% endfor %}}").loop


def printed(source: str, *chosen: int) -> list[str] | None:
    call = TemplateCall(MESSAGES)
    return template(source).render_messages(call, MESSAGES, lambda _: chosen)


@pytest.mark.parametrize(
    "body",
    [
        "{{ messages }}",
        "{{ messages | length }}",
        "{{ messages[1:] }}",
        "{{ messages[loop.index0 - 2] }}",
        "{{ messages[loop.index + 1] }}",
        "{{ loop.length }}",
        "{{ loop['index'] }}",
        "{{ loop.changed(m) }}",
        "{{ lipsum() }}",
        "{{ [1, 2] | random }}",
        "{% set ns.x = 1 %}",
        "{% set messages = [] %}",
        "{% if m.content %}{% break %}{% endif %}",
        "{% for p in messages %}{{ p.role }}{% endfor %}",
        "{% for p in m.parts %}{{ messages[loop.index0 - 1].role }}{% endfor %}",
        "{{ show(m) }}",
        "{{ strftime_now('%Y') }}",
    ],
)
def test_prints_that_depend_on_what_cannot_be_told_are_left_to_whole_runs(body: str) -> None:
    assert (
        looped(body, "{% set last = 1 %}{% macro show(m) %}{{ m }}{{ last }}{% endmacro %}") is None
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages }}",
        "{% for m in messages[1:] %}{{ m.role }}{% endfor %}",
        "{% for m in messages if m.role %}{{ m.role }}{% endfor %}",
        "{% for m in messages %}{{ m.role }}{% else %}none{% endfor %}",
        "{% for m in messages recursive %}{{ m.role }}{% endfor %}",
        "{% for a, b in messages %}{{ a }}{% endfor %}",
        "{% if tools %}{% for m in messages %}{{ m.role }}{% endfor %}{% endif %}",
        "{% set messages = messages[1:] %}{% for m in messages %}{{ m.role }}{% endfor %}",
        "{% block a %}{% endblock %}{% for m in messages %}{{ m.role }}{% endfor %}",
        "{% if x %}{% macro f() %}{% endmacro %}{% endif %}{% for m in messages %}{% endfor %}",
        "{% macro f(m) %}{{ messages[0] }}{% endmacro %}{% for m in messages %}{% endfor %}",
        "{% macro f(n) %}{% set n.x = 1 %}{% endmacro %}{% for m in messages %}{% endfor %}",
    ],
)
def test_templates_of_another_form_have_no_loop(source: str) -> None:
    assert template(source).loop is None


NUMBERS = [7, 8, 9]
NONE = (1,)


@pytest.mark.parametrize(
    ("body", "places"),
    [
        ("", [NONE] * 3),
        ("{% set c = m.content %}{{ c }}{{ tools }}", [NONE] * 3),
        ("{% for p in m.parts if p %}{{ loop.length }}{% break %}{% endfor %}", [NONE] * 3),
        ("{% for p in m %}{{ p }}{% else %}x{% endfor %}{% continue %}", [NONE] * 3),
        ("{{ m.content | trim }}{{ m['content'] }}{{ tools.x }}", [NONE] * 3),
        ("{{ loop.index }}", [(1, 1, 1, 1, 0), (1, 1, 1, 1, 1), (1, 1, 1, 1, 2)]),
        ("{{ loop.first }}", [(1, 1, 1, 1, 0), (1, 1, 1, 1, 1), (1, 1, 1, 1, 2)]),
        ("{{ loop.last }}", [(1, 1, 1, 8, 1), (1, 1, 1, 9, 1), (1, 1, 1, 0, 1)]),
        ("{{ messages[loop.index0 + 1] }}", [(1, 1, 1, 8, 1), (1, 1, 1, 9, 1), (1, 1, 1, 0, 1)]),
        ("{{ loop.previtem }}", [(1, 1, 9, 1, 1), (1, 1, 7, 1, 1), (1, 1, 8, 1, 1)]),
        ("{{ messages[loop.index0 - 1] }}", [(1, 1, 9, 1, 1), (1, 1, 7, 1, 1), (1, 1, 8, 1, 1)]),
        ("{{ messages[0].role }}", [(1, 7, 1, 1, 1)] * 3),
    ],
)
def test_a_message_stands_otherwise_where_what_its_print_reads_differs(
    body: str, places: list[tuple[int, ...]]
) -> None:
    loop = looped(body)

    assert loop is not None
    assert loop.places(NUMBERS, 1) == places


def test_only_chosen_messages_are_printed_and_know_where_they_stand() -> None:
    around = "{{ loop.index }}{{ (loop.previtem or m).role }}{{ (loop.nextitem or m).role }}"
    source = f"head{{% for m in messages %}}{{{{ m.role }}}}{around}{{% endfor %}}tail"

    assert printed(source, 0, 1, 2, 3) == ["head", "a1ab", "b2ac", "c3ba", "a4ca", "tail"]
    assert printed(source, 1, 3) == ["head", "b2ac", "a4ca", "tail"]
    assert printed(source) == ["head", "tail"]
    nested = "{% for x in 'xy' %}{{ loop.index }}{% endfor %}"
    plain = f"{{% for m in messages %}}{{{{ m.role }}}}{nested}{{% endfor %}}"
    assert printed(plain, 0, 2) == ["", "a12", "c12", ""]


def test_values_set_in_front_are_told_and_macros_are_not() -> None:
    head = "{% set a = 1 %}{% macro f(b) %}{{ b }}{% endmacro %}{% set n = namespace(x=2) %}"
    source = (
        f"{head}{{% for m in messages %}}{{{{ f(a) }}}}{{{{ n.x }}}}{{{{ other }}}}{{% endfor %}}"
    )
    told: list[Sequence[object]] = []

    def choose(values: Sequence[object]) -> list[int]:
        told.append(values)
        return [0]

    texts = template(source).render_messages(TemplateCall(MESSAGES), MESSAGES, choose)

    assert (texts, told[0][0], len(told[0])) == (["", "12", ""], 1, 2)


def test_what_cannot_be_told_apart_is_rendered_as_a_whole() -> None:
    assert printed("{{ messages }}", 0) is None
    assert printed("{% for m in messages %}{{ m.role.x.y }}{% endfor %}", 0) is None
    assert printed(f"{{% for m in messages %}}{MARK}{{% endfor %}}", 0) is None

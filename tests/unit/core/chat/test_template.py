from datetime import UTC, datetime

import pytest

from kvmesh.core.chat.opaque_text import SENTINEL, Slot
from kvmesh.core.chat.skeleton import Skeleton
from kvmesh.core.chat.template import ChatTemplate
from kvmesh.core.chat.template_call import ContentFormat, TemplateCall
from kvmesh.errors import ConfigError, RequestError


def compile_template(source: str) -> ChatTemplate:
    return ChatTemplate(
        source, {"bos_token": "<s>"}, lambda: datetime(2026, 7, 4, tzinfo=UTC), origin="here"
    )


def render(source: str, **fields: object) -> str:
    call = TemplateCall(**{"messages": [{"role": "user", "content": "x"}], **fields})  # type: ignore[arg-type]  # any field
    return compile_template(source).render(call)


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("{{ bos_token }}|{{ eos_token }}|{{ tools }}", "<s>||None"),
        ("  {% if true %}\n a\n  {% endif %}\nb", " a\nb"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "x!"),
        ("{{ strftime_now('%d %b %Y') }}", "04 Jul 2026"),
        ("{{ {'b': '<ü>', 'a': 1.0} | tojson }}", '{"b": "<ü>", "a": 1.0}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ 'ü' | tojson(ensure_ascii=true) }}", '"\\u00fc"'),
    ],
)
def test_templates_render_as_transformers_renders_them(source: str, wanted: str) -> None:
    assert render(source) == wanted


def test_null_fields_are_absent_and_variables_cannot_replace_the_messages() -> None:
    variables: dict[str, object] = {"messages": [], "tools": [], "x": 1, "bos_token": "<t>"}
    messages = [{"role": "user", "content": "c", "name": None}]
    source = "{{ messages[0].name is defined }}{{ tools }}{{ x }}{{ bos_token }}{{ documents }}"

    assert render(source, messages=messages, variables=variables) == "FalseNone1<t>None"
    assert render("{{ documents }}", documents=[{"a": 1}]) == "[{'a': 1}]"
    assert render("{{ documents }}", variables={"documents": []}) == "[]"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].__init__.__globals__ }}",
        "{{ raise_exception.__globals__['os'] }}",
    ],
)
def test_a_template_reaches_neither_python_nor_its_arguments(source: str) -> None:
    with pytest.raises(RequestError):
        render(source)


def test_a_broken_template_is_a_configuration_error_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"here, line 2: .*template option"):
        compile_template("\n{% if %}")


CONTINUED = "{% for m in messages %}<{{ m.content FILTER }}>{% endfor %}"


@pytest.mark.parametrize(
    ("template", "content", "wanted"),
    [
        (CONTINUED.replace("FILTER", ""), "ab ", "<ab "),
        (CONTINUED.replace("FILTER", "| trim"), " ab ", "<ab"),
        (
            "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}",
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "other"}],
            "<a><b",
        ),
    ],
)
def test_a_continued_message_ends_where_its_text_ends(
    template: str, content: object, wanted: str
) -> None:
    messages = [{"role": "assistant", "content": content}]

    assert render(template, messages=messages, cut="continue") == wanted
    assert messages == [{"role": "assistant", "content": content}]


@pytest.mark.parametrize("content", [None, [], [{"type": "other"}], ["bare"]])
def test_a_message_without_text_cannot_be_continued(content: object) -> None:
    with pytest.raises(RequestError, match="has no text to continue"):
        render("x", messages=[{"role": "assistant", "content": content}], cut="continue")


@pytest.mark.parametrize("source", ["x", "{{ messages[0].content[-27:] }}"])
def test_a_template_that_drops_the_continued_text_is_refused(source: str) -> None:
    messages = [{"role": "assistant", "content": "long enough to be missed"}]

    with pytest.raises(RequestError, match="does not print the final message") as caught:
        render(source, messages=messages, cut="continue")
    assert caught.value.param == "continue_final_message"


@pytest.mark.parametrize(
    ("source", "developer", "clock"),
    [
        ("{{ messages }}", False, False),
        ("{# 'developer' image #}{{ strftime_now('') }}", True, True),
        ('{# "developer" #}', True, False),
    ],
)
def test_a_template_knows_what_it_reads(source: str, developer: bool, clock: bool) -> None:
    template = compile_template(source)

    assert template.knows_developer is developer
    assert template.uses_clock is clock


def test_each_engines_content_format_is_looked_for_once() -> None:
    template = compile_template("{{ messages }}")
    looked: list[str] = []

    def detect(source: str) -> ContentFormat:
        looked.append(source)
        return "openai"

    assert [template.content_format(detect) for _ in range(2)] == ["openai", "openai"]
    assert (template.content_format(lambda _: "string"), looked) == ("string", ["{{ messages }}"])


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("a{{ messages[0].content }}", Skeleton(("a", Slot(0)))),
        ("a", Skeleton(("a",))),
        ("{{ messages[0].content | upper }}", "uses filter upper on a text"),
        ("{{ [1][messages[0].content] }}", "uses __str__ of a text"),
        ("{{ raise_exception('no') }}", ""),
        (f"{SENTINEL}{{{{ messages[0].content }}}}", "handles texts in a way not understood"),
        ("{{ strftime_now('%Y') }}", Skeleton(("2026",), clock=(("%Y", "2026"),))),
        ("{{ 'x' in messages[0].content }}", Skeleton(("False",), absent=((0, "x"),))),
    ],
)
def test_what_is_printed_around_texts_is_told(source: str, wanted: Skeleton | str) -> None:
    call = TemplateCall([{"role": "user", "content": "key", "name": None}])

    assert compile_template(source).outline(call, ["key"]) == wanted


def test_one_thread_at_a_time_learns_what_is_printed() -> None:
    call = TemplateCall([{"role": "user", "content": "key"}])
    inner: list[object] = []

    def clock() -> datetime:
        inner.append(template.outline(call, ["key"]))
        return datetime(2026, 7, 4, tzinfo=UTC)

    template = ChatTemplate("{{ strftime_now('%d') }}", {}, clock, origin="here")

    assert template.outline(call, ["key"]) == Skeleton(("04",), clock=(("%d", "04"),))
    assert inner == [None]


def test_a_source_is_probed_once() -> None:
    asked: list[str] = []

    def probe(source: str) -> bool:
        asked.append(source)
        return True

    template = compile_template("{{ bos_token }}")

    assert [template.wants_system_first(probe) for _ in range(2)] == [True, True]
    assert asked == ["{{ bos_token }}"]

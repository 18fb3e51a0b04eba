from contextlib import suppress

import pytest

from kvmesh.core.chat.opaque_text import OpaqueText, Piece, Slot, Trace, opaque
from kvmesh.core.chat.skeleton import merged
from kvmesh.core.chat.tracing import TracingEnvironment


def run(
    source: str, environment: TracingEnvironment | None = None
) -> tuple[tuple[Piece, ...], Trace]:
    """Return what the template makes of a text, a list of parts, and a message."""
    environment = environment or TracingEnvironment()
    template = environment.compile_traced(source, {"count": len, "give": lambda: "given"})
    trace = environment.trace
    text = opaque(trace, [Slot(0)])
    message = {"role": "user", "content": text}
    printed = template.render(text=text, parts=[{"text": text}], m=message, n=None)
    return printed.pieces if isinstance(printed, OpaqueText) else (printed,), trace


SLOT = Slot(0)
STRIPPED = Slot(0, (("strip", None),))


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("a{{ text }}b{{ 1.5 }}", ("a", SLOT, "b", "1.5")),
        ("{{ 'a' + text ~ 1 ~ none }}", ("a", SLOT, "1", "None")),
        ("{{ text | trim }}", (STRIPPED,)),
        ("{{ text.strip() }}", (STRIPPED,)),
        ("{{ text | default('x', true) | string }}", (SLOT,)),
        ("{{ text or '' }}{{ 'x' if not text }}", (SLOT,)),
        ("{% for p in parts %}{{ p.text }}{% endfor %}{{ parts | length }}", (SLOT, "1")),
        ("{{ parts | map(attribute='text') | first }}{{ (parts | last)['text'] }}", (SLOT, SLOT)),
        ("{{ text is string }}{{ text is sequence }}{{ text is mapping }}", ("TrueTrueFalse",)),
        ("{{ parts is iterable }}{{ 1 is sequence }}{{ n is none }}", ("True", "False", "True")),
        ("{{ 'content' in m }}{{ m.content is defined }}", ("True", "True")),
        ("{% macro f(x) %}<{{ x }}>{{ caller() }}{% endmacro %}{% call f(text) %}!{% endcall %}",
         ("<", SLOT, ">", "!")),
        ("{% set s = namespace(t=text) %}{% set s.t = s.t + '.' %}{{ s.t }}", (SLOT, ".")),
        ("{% set b %} {{ text }}{% endset %}{{ b.lstrip() }}", (Slot(0, (("lstrip", None),)),)),
        ("{% filter trim %} a{{ text }}{% endfilter %}", ("a", Slot(0, (("rstrip", None),)))),
        ("{{ dict(a=text).a }}{{ m.get('content') }}{{ give() }}", (SLOT, SLOT, "given")),
        ("{% generation %}{{ text }}{% endgeneration %}", (SLOT,)),
        ("{{ 'abc' | replace('a', 'x', 1) }}{{ count([1]) }}{{ 'b' | upper }}", ("xbc", "1", "B")),
        ("{{ undefined_one | default('d') }}{{ nothing is defined }}", ("d", "False")),
    ],
)  # fmt: skip
def test_what_is_printed_of_a_text_is_known(source: str, wanted: tuple[Piece, ...]) -> None:
    found, trace = run(source)

    assert (merged(found), trace.refused, trace.absent) == (merged(wanted), "", {})


@pytest.mark.parametrize(
    ("source", "marks"),
    [
        ("{{ 'a' in text }}{{ 'b' not in text }}", "ab"),
        ("{{ (text | replace('a', '')).split('b')[-1] }}", "ab"),
        ("{{ text == 'a' }}{{ text.startswith('b') or text.endswith('c') }}", "abc"),
    ],
)
def test_what_a_text_is_asked_for_is_noted(source: str, marks: str) -> None:
    _, trace = run(source)

    assert [mark for _, mark in trace.absent] == list(marks)
    assert not trace.refused


@pytest.mark.parametrize(
    "source",
    [
        "{{ text in 'abc' }}",
        "{{ 'a' in text in ['b'] }}",
        "{{ text is in 'abc' }}",
        "{{ 'a' is in text }}",
        "{{ text | length }}",
        "{{ text | upper }}",
        "{{ 'a' | replace('a', text) }}",
        "{{ parts | tojson }}",
        "{{ parts | map(attribute='text') | tojson }}",
        "{{ parts | map(attribute='text') | join }}",
        "{{ {'a': text} | tojson }}",
        "{{ parts | map(attribute='text') | map('upper') | list }}",
        "{{ [text] | select('lower') | list }}",
        "{{ 'x%s' | format(text) }}",
        "{{ 'x%s' % text }}",
        "{{ 'x{}'.format(text) }}",
        "{{ count(text) }}",
        "{{ count(x=text) }}",
        "{{ 'a'.join([text]) }}",
        "{{ 'abc'.startswith(text) }}",
        "{{ text.format(1) }}",
        "{{ text.pieces }}{{ text[0] }}",
        "{{ text is lower }}",
        "{{ m }}",
        "{{ {text: 1} }}",
        "{% for c in text %}{{ c }}{% endfor %}",
        "{{ text | int }}",
        "{{ cycler('a', text).next() }}",
    ],
)
def test_a_template_that_looks_at_a_text_is_found_out(source: str) -> None:
    environment = TracingEnvironment()
    environment.trace = trace = Trace()

    with suppress(Exception):  # whatever it is, the note counts
        run(source, environment)

    assert trace.refused


@pytest.mark.parametrize("source", ["{{ [1, 2] | random }}", "{{ lipsum() }}"])
def test_a_template_that_rolls_dice_does_not_run(source: str) -> None:
    with pytest.raises(Exception, match=r"random|lipsum"):
        run(source)

"""Messages of gateways as `xds-protos` makes them, drawn by hypothesis."""

from typing import Any, cast

from envoy.service.ext_proc.v3 import external_processor_pb2 as wire
from hypothesis import strategies as st

DESTINATION = "x-gateway-destination-endpoint"
NAMES = st.sampled_from([":path", "x-a", "X-Upper", DESTINATION, "", "cookie"])
TEXTS = st.text(max_size=8).filter(lambda text: "\x00" not in text)
WORDS = st.lists(st.sampled_from(["10.0.0.1:80", " a ", "", "é", "b,c"]), max_size=3)
ATTRIBUTES = st.dictionaries(
    TEXTS, TEXTS | st.floats(allow_nan=False) | st.booleans() | st.none() | WORDS, max_size=3
)


@st.composite
def header_maps(draw: st.DrawFn) -> list[tuple[str, str | None, bytes | None]]:
    pairs = st.tuples(NAMES, st.none() | TEXTS, st.none() | st.binary(max_size=200))
    return draw(st.lists(pairs, max_size=5))


def fill(headers: Any, given: list[tuple[str, str | None, bytes | None]]) -> None:
    for name, value, raw in given:
        one = headers.headers.add(key=name)
        if value is not None:
            one.value = value
        if raw is not None:
            one.raw_value = raw


@st.composite
def messages(draw: st.DrawFn) -> wire.ProcessingRequest:
    message = wire.ProcessingRequest()
    kind = draw(
        st.sampled_from([f"{side}_{part}" for side in SIDES for part in PARTS]), label="kind"
    )
    part = getattr(message, kind)
    part.SetInParent()
    if kind.endswith("body"):
        part.body = draw(st.binary(max_size=300))
        part.end_of_stream = draw(st.booleans())
        part.end_of_stream_without_message = draw(st.booleans())
    elif kind.endswith("headers"):
        fill(part.headers, draw(header_maps()))
        part.end_of_stream = draw(st.booleans())
    else:
        fill(part.trailers, draw(header_maps()))
    if draw(st.booleans()):
        message.protocol_config.request_body_mode = cast("Any", draw(st.integers(0, 5)))
        message.protocol_config.response_body_mode = cast("Any", draw(st.integers(0, 5)))
    spaces = message.metadata_context.filter_metadata
    for space, key in (("envoy.lb.subset_hint", "-subset"), ("envoy.lb", "-served"), ("x", "")):
        value = draw(st.none() | WORDS | st.sampled_from(["10.0.0.1:1,10.0.0.2:2", ""]))
        if value is not None:
            spaces[space].update({DESTINATION + key: value})
    if draw(st.booleans()):
        message.attributes["envoy.filters.http.ext_proc"].update(draw(ATTRIBUTES))
    return message


SIDES = ("request", "response")
PARTS = ("headers", "body", "trailers")

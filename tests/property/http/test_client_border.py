"""Whatever a client sends: what is taken is within bounds, what is not is the client's mistake."""

from typing import Final, cast

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvmesh.app.prompts.prompt_reader import PromptReader
from kvmesh.app.prompts.reading import Reader
from kvmesh.app.prompts.request_wishes import WishOptions, WishReader
from kvmesh.app.prompts.tokenizer import ByteTokenizer
from kvmesh.core.chat.inference import Extension, read_chat
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.model_policy import ModelPolicies
from kvmesh.errors import RequestError
from kvmesh.transport.http.openai import ENDPOINTS, read_request
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import Request

CLIENT_ERRORS: Final = frozenset({400, 404, 413, 415, 422})
NUMBERS = (
    *("0", "-0.0", "1", "-1", "1.5", "1e30", "-1e30", "1e308", "1e400", "5e-324", "true", "null"),
    *("9" * 20, "-" + "9" * 20, "1" + "0" * 25, "9" * 400, "9" * 5000, "NaN", "[]", "{}", '"1"'),
    *("2147483647", "2147483648", "9223372036854775808", "18446744073709551616", "32769"),
)
STRINGS = (
    *('"\\u0000"', '"\\ud800"', '"\\udc00\\ud800"', '"' + "x" * 513 + '"', '["a"]', '[""]'),
    *('["' + "x" * 513 + '"]', "[" + ",".join(f'"{n}"' for n in range(2000)) + "]"),
    *("[" * 5000 + "]" * 5000, '{"a":' * 5000 + "1" + "}" * 5000, "[1,-1]", "[4294967296]"),
)
FIELDS = (
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of", "priority"),
    *("stream", "cache_salt", "lora_path", "model", "input_ids", "prompt", "messages", "user"),
    *("tools", "chat_template_kwargs", "reasoning_effort", "documents", "nvext"),
)
TEXTS = (
    *("", " ", "nan", "inf", "-inf", "1.7e308", "1e-320", "0x10", "1_0", "1 1", "+1", "1e5"),
    *("9" * 20, "9" * 25, "9" * 400, "9" * 9000, "-" + "9" * 30, "w0", "a,b", "kv", "dynamo"),
    *("\xe9", "\xff\xfe", "\x7f", "\x85", "\xd9\xa1", ",".join(map(str, range(3000)))),
)
HEADERS = (
    *("priority", "overlap-score-weight", "temperature", "output-tokens", "timeout-s"),
    *("router-mode", "cost", "worker-id", "allowed-workers", "labels", "tolerations"),
    *("session", "tenant", "bucket", "body"),
)
values = st.sampled_from(NUMBERS) | st.integers().map(str) | st.floats(allow_nan=False).map(repr)
fields = st.dictionaries(st.sampled_from(FIELDS), values, max_size=3)
wishes = st.dictionaries(st.sampled_from(Extension.__struct_fields__), values, max_size=2)
texts = st.sampled_from(TEXTS) | st.integers().map(str) | st.floats().map(repr)
headers = st.dictionaries(st.sampled_from(HEADERS), texts, max_size=3)


class Asked:
    """As much of an exchange as a reader reads."""

    def __init__(self, body: bytes, sent: dict[str, str]) -> None:
        lines = [
            (b"x-kvmesh-" + name.encode(), value.encode("latin-1")) for name, value in sent.items()
        ]
        self.request = Request("POST", b"/v1/chat/completions", lines, body)
        self.request_id = b"r"


def body_of(sent: dict[str, str], extension: dict[str, str]) -> bytes:
    plain = {"model": '"m"', "messages": '[{"role":"user","content":"hello there, you"}]'}
    parts = [f'"{name}":{value}' for name, value in (plain | sent).items()]
    inner = ",".join(f'"{name}":{value}' for name, value in extension.items())
    return f'{{{",".join(parts)},"kvmesh":{{{inner}}}}}'.encode()


def read(asked: Asked) -> RouteRequest:
    options = WishOptions(tenant_header="x-kvmesh-tenant")
    reader = Reader(
        PromptReader(ByteTokenizer(), 16), "r0", wishes=WishReader(options, ModelPolicies())
    )
    endpoint = ENDPOINTS["/v1/chat/completions"]
    parsed = read_chat(asked.request.body) or read_request(asked.request, endpoint)
    return reader.make(cast("Exchange", asked), endpoint, parsed)


def try_read(asked: Asked) -> RouteRequest | RequestError:
    try:
        return read(asked)
    except RequestError as error:
        return error


@given(fields, wishes, headers)
@example({"max_tokens": "1e30"}, {}, {})
@example({"n": "1" + "0" * 25}, {}, {})
@example({"n": "18446744073709551616", "max_tokens": "2147483647"}, {}, {})
@example({"priority": "9" * 400}, {}, {})
@example({}, {"priority": "9" * 20}, {})
@example({}, {}, {"priority": "9" * 20})
@example({}, {}, {"priority": "9" * 400})
@example({}, {}, {"overlap-score-weight": "1.7e308"})
@example({}, {}, {"output-tokens": "1e300"})
def test_a_request_is_within_bounds_or_refused(
    sent: dict[str, str], extension: dict[str, str], given: dict[str, str]
) -> None:
    check(sent, extension, given)


@pytest.mark.parametrize("name", HEADERS)
def test_no_header_is_beyond_its_bounds(name: str) -> None:
    for text in TEXTS:
        check({}, {}, {name: text})


@pytest.mark.parametrize("name", [*FIELDS, *Extension.__struct_fields__])
def test_no_field_is_beyond_its_bounds(name: str) -> None:
    for value in (*NUMBERS, *STRINGS):
        check({name: value} if name in FIELDS else {}, {}, {})
        check({}, {name: value} if name not in FIELDS else {}, {})


def check(sent: dict[str, str], extension: dict[str, str], given: dict[str, str]) -> None:
    """Read a request: it is refused, or within bounds."""
    request = try_read(Asked(body_of(sent, extension), given))
    if isinstance(request, RequestError):
        assert request.status in CLIENT_ERRORS
        assert 0 < len(str(request)) < 2000
        return

    for field in msgspec.structs.fields(RouteRequest):
        if field.name != "hashes":
            value = getattr(request, field.name)
            assert msgspec.convert(value, field.type) == value


@pytest.mark.parametrize("length", ["1e30", "1e300", "2147483648", "9" * 25])
def test_a_length_that_is_the_engines_to_judge_is_clamped(length: str) -> None:
    endpoint = ENDPOINTS["/v1/chat/completions"]
    body = body_of({"max_tokens": length, "n": "9" * 25, "priority": "9" * 25}, {})

    for parsed in (read_chat(body), read_request(Request("POST", b"/", [], body), endpoint)):
        assert parsed is not None
        assert (parsed.output_limit, parsed.choices, parsed.urgency) == (2**31 - 1, 2**15, -(2**15))

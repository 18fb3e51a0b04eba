import json
import struct
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from kvmesh._native import Histogram
from kvmesh.app.prompts.beginning import MOST_READ_BYTES
from kvmesh.app.prompts.prompt_reader import PromptReader
from kvmesh.app.prompts.reading import MOST_PACKED, Reader
from kvmesh.app.prompts.reading_parts import within_patience
from kvmesh.app.prompts.tokenizer import load_tokenizer
from kvmesh.core.blocks.hashing import (
    ids_behind,
    namespace_root,
    pack_hashes,
    pack_tokens,
    sequence_hashes,
)
from kvmesh.core.insight.histogram import MICROSECONDS
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.errors import RequestError
from kvmesh.transport.http.forward.plan import ForwardOptions
from kvmesh.transport.http.openai import ENDPOINTS, OTHERS, find_endpoint, parse_request
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import Request
from tests.unit.app.prompts.tokenizer_models import write_model


class Asked:
    """As much of an exchange as a reader reads."""

    def __init__(self, body: bytes) -> None:
        self.request = Request("POST", b"/v1/completions", [], body)
        self.request_id = b"r"


def read(
    prompt: list[int] | list[list[int]],
    *,
    path: str = "/v1/completions",
    field: str = '"prompt"',
    vocab_size: int = 0,
    model: str | None = None,
) -> RouteRequest:
    body = f'{{"model":"m",{field}:{prompt}}}'.encode()
    endpoint = ENDPOINTS[path]
    reader = Reader(PromptReader(load_tokenizer(model), 16, vocab_size), "router")
    return reader.make(cast("Exchange", Asked(body)), endpoint, parse_request(body, endpoint))


@pytest.mark.parametrize(("length", "blocks"), [(15, 0), (16, 0), (17, 1), (32, 1), (33, 2)])
def test_the_block_with_the_last_token_is_never_promised(length: int, blocks: int) -> None:
    tokens = list(range(length))

    request = read(tokens)

    assert request.prompt_tokens == length
    assert list(request.hashes.upto(9)) == sequence_hashes(tokens[: blocks * 16], 16)


def test_ids_that_no_engine_takes_are_refused() -> None:
    assert read([151_642]).prompt_tokens == 1
    for prompt in ([1, -1], [1 << 31]):
        with pytest.raises(RequestError, match=r"token id .* at position"):
            read(prompt)


def test_an_id_outside_the_vocabulary_is_refused_anywhere_in_a_batch(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    size = load_tokenizer(model).vocab_size

    assert read([[1], [size - 1]], model=model).prompt_tokens == 2
    for directory, limit in ((model, 0), (None, size), (model, size)):
        with pytest.raises(RequestError, match=rf"token id {size} at position 1 .* 0..{size - 1}"):
            read([[1], [2, size]], model=directory, vocab_size=limit)


@pytest.mark.parametrize("field", ["input_ids", "token_ids"])
def test_ids_are_checked_on_engines_own_paths_and_read_no_further(field: str) -> None:
    def pass_on(ids: object) -> RouteRequest:
        body = msgspec.json.encode({"model": "m", "text": "x", field: ids})
        reader = Reader(PromptReader(load_tokenizer(None), 16, 99), "router")
        asked = cast("Exchange", Asked(body))
        found: list[RouteRequest] = []
        reader.read(asked, OTHERS["/generate"], lambda _, request: found.append(request))
        return found[0]

    for fine in ([1, 98], [[1], [98]], [], None, "1", {"a": 500}, [1.5], ["500"]):
        assert pass_on(fine).prompt_tokens == 0
    for wrong in ([1, 99], [[1], [2, 99]], [-1]):
        with pytest.raises(RequestError, match=r"token id (99 at position 1|-1 at position 0)"):
            pass_on(wrong)


def test_a_chats_own_ids_are_believed_and_checked() -> None:
    path, field = "/v1/chat/completions", '"messages":[],"input_ids"'

    request = read(list(range(40)), path=path, field=field)

    assert list(request.hashes.upto(9)) == sequence_hashes(list(range(32)), 16)
    with pytest.raises(RequestError, match="token id 99 "):
        read([99], vocab_size=99, path=path, field=field)


@pytest.mark.parametrize("model", [True, False])
def test_token_ids_are_kept_while_an_index_asks_for_them(tmp_path: Path, *, model: bool) -> None:
    tokenizer = load_tokenizer(write_model(tmp_path) if model else None)
    reader = Reader(PromptReader(tokenizer, 16), "router")
    endpoint = ENDPOINTS["/v1/completions"]
    words = "one two three four five six seven eight nine ten eleven twelve of them"
    body = json.dumps({"prompt": words}).encode()
    asked = Asked(body)
    asked.request = Request("POST", b"/v1/route", [], bytes(pack_tokens(list(range(33)))))

    def made() -> list[RouteRequest]:
        exchange = cast("Exchange", asked)
        return [
            reader.make(exchange, endpoint, parse_request(body, endpoint)),
            reader.read_binary(exchange),
        ]

    plain = made()
    reader.follow(lambda: True)
    text, binary = (request.hashes for request in made())

    assert [ids_behind(request.hashes, 0, 1) for request in plain] == [None, None]
    assert ids_behind(binary, 2, 1) == struct.pack("<I", 32)
    assert ids_behind(binary, 2, 2) == b""
    packed = tokenizer.pack(
        "one two three four five six seven eight nine ten eleven twelve of them",
        add_special_tokens=True,
    )
    own = packed.encode("utf-32-le") if isinstance(packed, str) else bytes(packed)
    assert ids_behind(text, 0, 3) == own[:12]


def read_binary(body: bytes, secret: bytes = b"", *headers: tuple[bytes, bytes]) -> RouteRequest:
    asked = Asked(body)
    asked.request = Request("POST", b"/v1/route", list(headers), body)
    reader = Reader(PromptReader(load_tokenizer(None), 16, 0), "router", secret=secret)
    return reader.read_binary(cast("Exchange", asked))


@pytest.mark.parametrize(("length", "blocks"), [(0, 0), (16, 0), (17, 1), (33, 2)])
def test_packed_tokens_are_read_like_ids_in_json(length: int, blocks: int) -> None:
    tokens = list(range(length))

    request = read_binary(bytes(pack_tokens(tokens)))

    assert request.prompt_tokens == length
    assert list(request.hashes.upto(9)) == sequence_hashes(tokens[: blocks * 16], 16)


def test_packed_hashes_are_taken_as_they_are() -> None:
    hashes = [5, 2**64 - 1]

    request = read_binary(pack_hashes(hashes), b"", (b"x-kvmesh-body", b"hashes"))

    assert (request.prompt_tokens, list(request.hashes.upto(9))) == (32, hashes)


def test_a_binary_body_that_is_no_whole_number_of_words_is_refused() -> None:
    with pytest.raises(RequestError, match="body of 6 bytes is not whole 4-byte tokens"):
        read_binary(b"123456")
    with pytest.raises(RequestError, match="body of 12 bytes is not whole 8-byte hashes"):
        read_binary(bytes(12), b"", (b"x-kvmesh-body", b"hashes"))
    with pytest.raises(RequestError, match="x-kvmesh-body is 'text': use tokens or hashes"):
        read_binary(bytes(8), b"", (b"x-kvmesh-body", b"text"))


def test_a_secret_gives_all_prompts_other_hashes() -> None:
    tokens, secret = list(range(33)), b"k" * 32
    root = namespace_root(secret=secret)
    reader = Reader(PromptReader(load_tokenizer(None), 16, 0), "router", secret=secret)
    endpoint = ENDPOINTS["/v1/completions"]
    body = f'{{"prompt":{tokens}}}'.encode()

    spoken = reader.make(cast("Exchange", Asked(body)), endpoint, parse_request(body, endpoint))
    packed = read_binary(bytes(pack_tokens(tokens)), secret)

    expected = sequence_hashes(tokens, 16, root)
    assert list(spoken.hashes.upto(9)) == list(packed.hashes.upto(9)) == expected
    assert expected[0] != sequence_hashes(tokens, 16)[0]


def test_hashes_are_refused_where_no_client_can_know_the_secret() -> None:
    asked = Asked(pack_hashes([5]))
    headers = [(b"x-kvmesh-body", b"hashes")]
    asked.request = Request("POST", b"/v1/route", headers, pack_hashes([5]))
    reader = Reader(PromptReader(load_tokenizer(None), 16, 0), "router", secret=b"k" * 32)
    reader.keeps_secret = True

    with pytest.raises(RequestError, match=r"send tokens, or .*--hash-secret-file"):
        reader.read_binary(cast("Exchange", asked))


USER = {"role": "user", "content": "Tell me of the sea. " * 9}
PARTS = {
    "role": "user",
    "content": [{"type": "text", "text": "Look: " * 20}, {"type": "image_url"}],
}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"x": 1.5}}}
CHATS: list[dict[str, Any]] = [
    {"messages": [USER]},
    {"messages": [{"role": "system", "content": "Be kind."}, USER, CALL, {"role": "tool"}]},
    {"messages": [USER, PARTS, USER]},
    {"messages": [USER], "tools": [TOOL], "tool_choice": "auto"},
    {"messages": [USER], "tools": None, "documents": [{"text": "d" * 40}]},
    {"messages": [USER], "chat_template_kwargs": {"thinking": True}, "reasoning_effort": 1},
    {"messages": [USER], "add_generation_prompt": False},
    {"messages": [USER], "continue_final_message": True},
    {"messages": [USER], "add_generation_prompt": None},
    {"messages": [USER], "tools": "none"},
    {"messages": [USER], "tools": [{"function": 1}]},
    {"messages": []},
    {"messages": [1]},
    {"messages": [{"role": 1, "content": "x"}]},
    {"messages": [{"role": "user", "content": "x", "tool_calls": 1}]},
]


@pytest.mark.parametrize("fields", CHATS, ids=json.dumps)
def test_a_chat_decoded_at_once_has_the_hashes_of_one_decoded_by_itself(
    fields: dict[str, Any],
) -> None:
    body = json.dumps({"model": "m", **fields}).encode()
    endpoint = ENDPOINTS["/v1/chat/completions"]
    reader = Reader(PromptReader(load_tokenizer(None), 16, 0), "router")
    asked, found = cast("Exchange", Asked(body)), list[RouteRequest]()

    reader.read(asked, endpoint, lambda _, request: found.append(request))
    apart = reader.make(asked, endpoint, parse_request(body, endpoint))

    assert found[0].prompt_tokens == apart.prompt_tokens
    assert found[0].hashes.upto(99) == apart.hashes.upto(99)


def test_a_chat_is_read_with_all_that_others_need_of_it() -> None:
    fields = {"messages": [USER], "n": 2, "max_tokens": 7, "stream": True, "model": "m"}
    body = json.dumps(fields).encode()
    asked = Asked(body)
    asked.request = Request("POST", b"/", [(b"x-kvmesh-timeout-s", b"2.5")], body)
    seconds = Histogram(MICROSECONDS)
    reader = Reader(PromptReader(load_tokenizer(None), 16, 0), "router", seconds=seconds)
    found: list[RouteRequest] = []

    chat = ENDPOINTS["/v1/chat/completions"]
    reader.read(cast("Exchange", asked), chat, lambda _, request: found.append(request))

    (request,) = found
    assert (request.model, request.streams, request.choices) == ("m", True, 2)
    assert (request.expected_output_tokens, request.timeout_s) == (14, 2.5)
    assert request.request_id == "r"
    assert seconds.cumulative()[-1][1] == 1


class Untouched:
    """A tokenizer that nobody may use."""

    vocab_size = 0
    inline_characters = 1 << 16

    def __getattr__(self, name: str) -> object:
        raise AssertionError(name)


def read_unseen(
    fields: dict[str, Any], path: str, *headers: tuple[bytes, bytes], tokenizer: Any = None
) -> RouteRequest:
    """Return a request read where nothing but a wish for mode kv looks at prompts."""
    body = json.dumps(fields).encode()
    asked = Asked(body)
    asked.request = Request("POST", b"/", list(headers), body)
    reader = Reader(PromptReader(cast("Any", tokenizer or Untouched()), 16, 99), "router")
    reader.uses_caches = lambda mode: mode == "kv"
    found: list[RouteRequest] = []
    endpoint = find_endpoint("POST", path, passthrough=True) if path else None
    reader.read(cast("Exchange", asked), endpoint, lambda _, request: found.append(request))
    return found[0]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"messages": [USER, PARTS]}, "/v1/chat/completions"),
        ({"prompt": "x" * 400}, "/v1/completions"),
        ({"input": "x" * 400}, "/v1/responses"),
    ],
    ids=("chat", "completion", "responses"),
)
def test_a_prompt_that_nothing_looks_at_is_told_by_its_size(
    fields: dict[str, Any], path: str
) -> None:
    request = read_unseen(fields, path)

    assert request.prompt_tokens == len(json.dumps(fields)) // 4
    assert request.hashes.blocks == 0
    assert request.estimated
    assert not request.approximate


def test_ids_that_nothing_looks_at_are_checked_and_counted() -> None:
    request = read_unseen({"prompt": [5] * 40}, "/v1/completions")

    assert (request.prompt_tokens, request.hashes.blocks, request.estimated) == (40, 0, False)
    with pytest.raises(RequestError, match="token id 99 "):
        read_unseen({"prompt": [99]}, "/v1/completions")


def test_what_has_no_prompt_has_no_tokens_either() -> None:
    request = read_unseen({"model": "m"}, "/v1/audio/speech")

    assert (request.prompt_tokens, request.estimated) == (0, False)


def test_a_prompt_is_read_where_its_request_wishes_for_caches_or_an_explanation() -> None:
    plain, fields = load_tokenizer(None), {"prompt": "x" * 40}
    mode = (b"x-kvmesh-router-mode", b"kv")

    wished = read_unseen(fields, "/v1/completions", mode, tokenizer=plain)
    explained = read_unseen(fields, "", tokenizer=plain)

    for request in (wished, explained):
        assert (request.prompt_tokens, request.hashes.blocks) == (40, 2)
        assert not request.estimated


def test_an_id_that_the_client_chose_is_made_unique() -> None:
    body = b'{"prompt":"x"}'
    asked = Asked(body)
    asked.request = Request("POST", b"/", [(b"x-request-id", b"r")], body)
    reader = Reader(PromptReader(load_tokenizer(None), 16, 0), "router")
    endpoint = ENDPOINTS["/v1/completions"]
    parsed = parse_request(body, endpoint)

    ids = [reader.make(cast("Exchange", asked), endpoint, parsed).request_id for _ in range(2)]

    assert ids == ["r#router-1", "r#router-2"]


@pytest.mark.parametrize(
    ("own_s", "asked_s", "deadline_s"),
    [(None, None, None), (None, 3.0, 3.0), (5.0, 3.0, 3.0), (5.0, 9.0, 5.0)],
)
def test_the_nearer_deadline_counts(
    own_s: float | None, asked_s: float | None, deadline_s: float | None
) -> None:
    found = within_patience(ForwardOptions(deadline_s=own_s), asked_s)

    assert found.deadline_s == deadline_s


def make(body: bytes, path: str = "/v1/chat/completions") -> RouteRequest:
    endpoint = ENDPOINTS[path]
    reader = Reader(PromptReader(load_tokenizer(None), 16), "router")
    return reader.make(cast("Exchange", Asked(body)), endpoint, parse_request(body, endpoint))


def chat_of(*texts: str, **fields: object) -> bytes:
    messages = [{"role": "user", "content": text} for text in texts]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def test_of_a_long_chat_the_beginning_has_the_blocks_of_the_whole() -> None:
    texts = [f"{number}" * 900_000 for number in range(5)]
    beginning, whole = make(chat_of(*texts[:4])), make(chat_of(*texts))

    # Four messages fit in what is read; the prompt to generate from does not follow them.
    assert whole.prompt_tokens == beginning.prompt_tokens - 1
    blocks = whole.prompt_tokens // 16
    assert list(whole.hashes.upto(blocks))[:blocks] == list(beginning.hashes.upto(blocks))[:blocks]


def test_of_a_long_text_the_beginning_is_hashed_and_the_rest_counted() -> None:
    text = "abcd" * 2_000_000
    body = json.dumps({"model": "m", "prompt": text}).encode()

    request = make(body, "/v1/completions")

    read = MOST_READ_BYTES - 1
    assert list(request.hashes.upto(8))[:8] == sequence_hashes([ord(one) for one in text[:128]], 16)
    assert request.hashes.blocks == read // 16
    assert read < request.prompt_tokens <= read + (len(text) - read) // 4 + 1


def test_long_token_ids_are_all_read_and_checked() -> None:
    ids = [100_000] * 700_000
    body = json.dumps({"model": "m", "prompt": ids}).encode()

    assert make(body, "/v1/completions").prompt_tokens == len(ids)
    with pytest.raises(RequestError, match="at position 700000"):
        make(json.dumps({"model": "m", "prompt": [*ids, -1]}).encode(), "/v1/completions")


@pytest.mark.parametrize(
    "body",
    [
        chat_of("x", tools=[{"name": "y" * 5_000_000}]),
        chat_of("x" * 5_000_000),
        json.dumps({"model": "m", "messages": [1, "y" * 5_000_000]}).encode(),
    ],
)
def test_a_long_prompt_without_a_beginning_goes_by_load_alone(body: bytes) -> None:
    request = make(body)

    assert (request.hashes.blocks, request.prompt_tokens) == (0, 0)


def test_more_packed_hashes_than_a_prompt_has_are_refused() -> None:
    reader = Reader(PromptReader(load_tokenizer(None), 16), "router")
    asked = Asked(bytes(4 * (MOST_PACKED + 1)))

    with pytest.raises(RequestError, match=f"{MOST_PACKED} at most") as caught:
        reader.read_binary(cast("Exchange", asked))

    assert caught.value.status == 413


def form_of(
    fields: str, *, path: str = "/v1/completions", model: str | None = None
) -> RouteRequest:
    body = f'{{"model":"m",{fields}}}'.encode()
    endpoint = ENDPOINTS[path]
    reader = Reader(PromptReader(load_tokenizer(model), 16), "router")
    return reader.make(cast("Exchange", Asked(body)), endpoint, parse_request(body, endpoint))


TEXT = "What everybody asks about, again and again."


@pytest.mark.parametrize(
    ("fields", "tokens", "blocks", "unforeseen"),
    [
        (f'"prompt":"{TEXT}"', 43, 2, ""),
        (f'"prompt":["{TEXT}"]', 43, 2, ""),
        (f'"prompt":["{TEXT}","{TEXT}"]', 43 + 10, 2, "batch"),
        (f'"prompt":[{list(range(40))},[1,2]]', 42, 2, "batch"),
        (f'"prompt":"{TEXT}","n":2', 43, 2, "siblings"),
        (f'"prompt":"{TEXT}","prompt_logprobs":1', 43, 0, ""),
        (f'"prompt":{list(range(40))},"echo":true,"logprobs":1', 40, 0, ""),
        (f'"prompt":"{TEXT}","truncate_prompt_tokens":20', 20, 1, ""),
        (f'"prompt":{list(range(40))},"truncate_prompt_tokens":20', 20, 1, ""),
        ('"prompt_embeds":"AAAA"', 9, 0, "embeds"),
        ('"prompt":[1],"prompt_embeds":"AAAA"', 12, 0, "embeds"),
    ],
)
def test_a_prompt_is_read_as_its_form_has_the_engine_take_it(
    fields: str, tokens: int, blocks: int, unforeseen: str
) -> None:
    request = form_of(fields)

    assert (request.prompt_tokens, request.hashes.blocks) == (tokens, blocks)
    assert request.unforeseen == unforeseen


def test_a_truncated_prompt_is_its_end_or_its_beginning() -> None:
    ids = list(range(40))

    end = form_of(f'"prompt":{ids},"truncate_prompt_tokens":20')
    beginning = form_of(f'"prompt":{ids},"truncate_prompt_tokens":20,"truncation_side":"right"')

    assert list(end.hashes.upto(9)) == sequence_hashes(ids[20:36], 16)
    assert list(beginning.hashes.upto(9)) == sequence_hashes(ids[:16], 16)


def test_special_tokens_are_around_a_chat_only_where_it_asks_for_them(tmp_path: Path) -> None:
    model, chat = write_model(tmp_path), '"messages":[{"role":"user","content":"hi"}]'
    path = "/v1/chat/completions"
    tokenizer = load_tokenizer(model)
    tokenizer.affixes = (bytes(pack_tokens([7])), bytes(pack_tokens([8])))
    endpoint = ENDPOINTS[path]
    reader = Reader(PromptReader(tokenizer, 16), "router")
    reported = []
    for fields in (chat, f'{chat},"add_special_tokens":true'):
        body = f'{{"model":"m",{fields}}}'.encode()
        parsed = parse_request(body, endpoint)
        reported.append(reader.make(cast("Exchange", Asked(body)), endpoint, parsed).prompt_tokens)

    assert reported[1] == reported[0] + 2


@pytest.mark.parametrize(
    ("path", "fields", "unforeseen"),
    [
        ("/v1/messages", '"messages":[{"role":"user","content":"hi"}]', ""),
        ("/v1/messages", '"messages":[{"role":"user","content":[{"type":"?"}]}]', "rendering"),
        ("/v1/responses", '"input":"hi"', ""),
        ("/v1/responses", '"input":"hi","previous_response_id":"resp_1"', "stored"),
        ("/v1/chat/completions", '"messages":[{"role":"user","content":[{"type":"?"}]}]', "media"),
        ("/v1/chat/completions", '"messages":[]', "rendering"),
        ("/v1/models", '"other":1', "unread"),
        ("/v1/embeddings", '"input":"hi"', ""),
        ("/v1/embeddings", '"input":[{"role":"user","content":"hi"}]', "unread"),
        ("/v1/embeddings", '"messages":[{"role":"user","content":"hi"}]', "unread"),
    ],
)
def test_why_a_chat_is_not_foretold_is_said(path: str, fields: str, unforeseen: str) -> None:
    assert form_of(fields, path=path).unforeseen == unforeseen


@pytest.mark.parametrize(
    ("name", "stored"), [('"resp_1"', "resp_1"), ("3", ""), (f'"{"x" * 600}"', "")]
)
def test_the_answer_that_a_request_goes_on_from_is_named(name: str, stored: str) -> None:
    fields = f'"input":"hi","previous_response_id":{name}'

    assert form_of(fields, path="/v1/responses").stored == stored
    # Only the responses API has such answers; a router that looks at no prompt keeps to them, too.
    chat = f'"messages":[{{"role":"user","content":"hi"}}],"previous_response_id":{name}'
    assert form_of(chat, path="/v1/chat/completions").stored == ""
    unseen = {"model": "m", **json.loads(f"{{{fields}}}")}
    assert read_unseen(unseen, "/v1/responses").stored == stored


@pytest.mark.parametrize(
    ("fields", "adapter"),
    [
        ('"model":"m"', ""),
        ('"model":"poet"', "poet"),
        ('"model":"m","lora_path":"poet"', "poet"),
        ('"model":"m","lora_path":["poet",null]', "poet"),
        ('"model":"m","lora_path":[null]', ""),
        ('"model":"m","lora_path":"made-up"', ""),
        (f'"model":"m","lora_path":"{"x" * 5_000}"', ""),
    ],
)
def test_only_adapters_that_workers_serve_are_remembered(fields: str, adapter: str) -> None:
    body = f'{{"prompt":"hi",{fields}}}'.encode()
    endpoint = ENDPOINTS["/v1/completions"]
    reader = Reader(PromptReader(load_tokenizer(None), 16), "router", adapters={"poet"})

    made = reader.make(cast("Exchange", Asked(body)), endpoint, parse_request(body, endpoint))

    assert made.adapter == adapter


@pytest.mark.parametrize(
    ("key", "own"),
    [
        ('"a"', "a"),
        ('["a","b"]', "a"),
        ('""', ""),
        ("[]", ""),
        ("null", ""),
        ("7", ""),
        ("[7]", ""),
    ],
)
def test_a_prompt_with_an_extra_key_is_of_no_other_namespace(key: str, own: str) -> None:
    prompt = f'"prompt":{[*range(40)]}'

    plain, salted = form_of(prompt), form_of(f'{prompt},"cache_salt":"s"')
    kept = form_of(f'{prompt},"extra_key":{key}')
    both = form_of(f'{prompt},"extra_key":{key},"cache_salt":"s"')

    assert (kept.unforeseen, kept.approximate) == ("extra_key" if own else "", bool(own))
    roots = [one.hashes.upto(2)[0] for one in (plain, salted, kept, both)]
    assert len(set(roots)) == (4 if own else 2)
    again = form_of(f'{prompt},"extra_key":"a"')
    assert (again.hashes.upto(2) == kept.hashes.upto(2)) == bool(own)
    assert form_of(f'{prompt},"extra_key":{key},"n":2').unforeseen == "siblings"


def test_an_extra_key_is_nothing_to_a_router_that_looks_at_no_prompt() -> None:
    asked = {"model": "m", "prompt": "hi", "extra_key": "a"}

    assert read_unseen(asked, "/v1/completions").unforeseen == ""

from pathlib import Path
from typing import cast

import pytest

from kvmesh.app.prompts.intake import Intake
from kvmesh.app.prompts.prompt_reader import PromptReader
from kvmesh.app.prompts.tokenizer import load_tokenizer
from kvmesh.core.blocks.hashing import namespace_root, pack_hashes, pack_tokens, sequence_hashes
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.errors import RequestError
from kvmesh.transport.http.openai import ENDPOINTS, parse_request
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import Request
from tests.unit.app.prompts.tokenizer_models import write_model


class Asked:
    """As much of an exchange as an intake reads."""

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
    intake = Intake(PromptReader(load_tokenizer(model), 16, vocab_size), "router")
    return intake.read(cast("Exchange", Asked(body)), endpoint, parse_request(body, endpoint))


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

    assert read([[1], [size - 1]], model=model).prompt_tokens == 1
    for directory, limit in ((model, 0), (None, size), (model, size)):
        with pytest.raises(RequestError, match=rf"token id {size} at position 1 .* 0..{size - 1}"):
            read([[1], [2, size]], model=directory, vocab_size=limit)


def test_a_chats_own_ids_are_believed_and_checked() -> None:
    path, field = "/v1/chat/completions", '"messages":[],"input_ids"'

    request = read(list(range(40)), path=path, field=field)

    assert list(request.hashes.upto(9)) == sequence_hashes(list(range(32)), 16)
    with pytest.raises(RequestError, match="token id 99 "):
        read([99], vocab_size=99, path=path, field=field)


def read_binary(body: bytes, secret: bytes = b"", *headers: tuple[bytes, bytes]) -> RouteRequest:
    asked = Asked(body)
    asked.request = Request("POST", b"/v1/route", list(headers), body)
    intake = Intake(PromptReader(load_tokenizer(None), 16, 0), "router", secret=secret)
    return intake.read_binary(cast("Exchange", asked))


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
    intake = Intake(PromptReader(load_tokenizer(None), 16, 0), "router", secret=secret)
    endpoint = ENDPOINTS["/v1/completions"]
    body = f'{{"prompt":{tokens}}}'.encode()

    spoken = intake.read(cast("Exchange", Asked(body)), endpoint, parse_request(body, endpoint))
    packed = read_binary(bytes(pack_tokens(tokens)), secret)

    expected = sequence_hashes(tokens, 16, root)
    assert list(spoken.hashes.upto(9)) == list(packed.hashes.upto(9)) == expected
    assert expected[0] != sequence_hashes(tokens, 16)[0]

from typing import cast

import pytest

from kvmesh.app.intake import Intake
from kvmesh.core.decision import RouteRequest
from kvmesh.core.hashing import sequence_hashes
from kvmesh.tokenizer import load_tokenizer
from kvmesh.transport.http.exchange import Exchange
from kvmesh.transport.http.openai import ENDPOINTS, parse_request
from kvmesh.transport.http.request import Request


class Asked:
    """As much of an exchange as an intake reads."""

    def __init__(self, body: bytes) -> None:
        self.request = Request("POST", b"/v1/completions", [], body)
        self.request_id = b"r"


def read(prompt: list[int]) -> RouteRequest:
    body = b'{"model":"m","prompt":%s}' % str(prompt).encode()
    endpoint = ENDPOINTS["/v1/completions"]
    intake = Intake(load_tokenizer(None), 16, "router")
    return intake.read(cast("Exchange", Asked(body)), endpoint, parse_request(body, endpoint))


@pytest.mark.parametrize(("length", "blocks"), [(15, 0), (16, 0), (17, 1), (32, 1), (33, 2)])
def test_the_block_with_the_last_token_is_never_promised(length: int, blocks: int) -> None:
    tokens = list(range(length))

    request = read(tokens)

    assert request.prompt_tokens == length
    assert request.hashes.upto(9) == sequence_hashes(tokens[: blocks * 16], 16)

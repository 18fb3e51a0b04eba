"""Answers of the pretend vLLM that another one began, and the oracle that judges them."""

import json
from typing import Any

import httpx
import pytest

from tests.integration.support.live_router import engine, mocker_options
from tests.integration.support.stream_oracle import Finding, StreamOracle, compare, received

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
BODY: dict[str, Any] = {
    "prompt": "how long is the river?",
    "messages": [{"role": "user", "content": "how long is the river?"}],
    "stream": True,
    "max_tokens": 400,
    "return_token_ids": True,
}


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize("more", [{}, {"cache_salt": "a", "seed": 4}, {"ignore_eos": True}])
@pytest.mark.parametrize("generated", [1, 29])
async def test_another_mocker_goes_on_with_the_ids_of_a_stream(
    path: str, more: dict[str, Any], generated: int
) -> None:
    body, oracle = BODY | more, StreamOracle()
    async with (
        engine(mocker_options(16, 512)) as one,
        engine(mocker_options(32, 512)) as other,
        httpx.AsyncClient(timeout=60) as client,
    ):
        whole = (await client.post(one.url + path, json=body)).content
        first = received(whole)
        assert first.ids is not None
        assert first.prompt_ids is not None
        asked = {
            **more,
            "prompt": first.prompt_ids + first.ids[:generated],
            "stream": True,
            "max_tokens": 400 - generated,
            "return_token_ids": True,
        }
        rest = (await client.post(other.url + COMPLETION, json=asked)).content

    assert oracle.judge(path, body, whole) == Finding("")
    assert oracle.judge(COMPLETION, asked, rest) == Finding("")
    second = received(rest)
    assert second.ids == first.ids[generated:]
    assert second.finish_reason == first.finish_reason
    spliced = first.ids[:generated] + second.ids
    assert oracle.judge(path, body, stream_of(path, first.prompt_ids, spliced)) == Finding("")


def stream_of(path: str, prompt_ids: list[int], ids: list[int]) -> bytes:
    """A stream of these tokens of bytes, an event each."""
    prompt = json.dumps(prompt_ids)
    events = []
    for place, one in enumerate(ids):
        text, is_last = json.dumps(chr(one)), place == len(ids) - 1
        said = f'"delta":{{"content":{text}}}' if path == CHAT else f'"text":{text}'
        reason = '"stop"' if is_last and len(ids) < 400 else '"length"' if is_last else "null"
        events.append(
            f'data: {{"choices":[{{"index":0,{said},"finish_reason":{reason},'
            f'"prompt_token_ids":{prompt},"token_ids":[{one}]}}]}}\n\n'
        )
    return "".join(events).encode() + b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("came", "finding"),
    [
        ("abcdefgh", Finding("")),
        ("abcd", Finding("cut", 4, 4)),
        ("abcfgh", Finding("lost", 3, 2)),
        ("abcdebcdefgh", Finding("repeated", 1, 4)),
        ("abcddefgh", Finding("repeated", 3, 1)),
        ("abcxefgh", Finding("changed", 3, 5)),
        ("abcdefghi", Finding("changed", 8, 1)),
        ("", Finding("cut", 0, 8)),
    ],
)
def test_the_oracle_tells_what_is_lost_repeated_or_changed(came: str, finding: Finding) -> None:
    assert compare("abcdefgh", came) == finding
    assert compare(list("abcdefgh"), list(came)) == finding


def test_the_oracle_wants_an_end_and_no_error() -> None:
    oracle, asked = StreamOracle(), BODY | {"return_token_ids": False, "max_tokens": 2}
    text = oracle.expected(COMPLETION, asked).text(0, 2)
    event = b'data: {"choices":[{"index":0,"text":%b,"finish_reason":%b}]}\n\n'
    right = event % (json.dumps(text).encode(), b'"length"')
    done = b"data: [DONE]\n\n"

    def judge(stream: bytes) -> Finding:
        return oracle.judge(COMPLETION, asked, stream)

    assert judge(right + done) == Finding("")
    assert judge(right) == Finding("no end", 2)
    assert judge(right.replace(b"length", b"stop") + done) == Finding("no end", 2)
    assert judge(right + b'data: {"error":{}}\n\n' + done) == Finding("errors", length=1)
    with_ids = right.replace(b"}]", b',"token_ids":[1]}]') + done
    assert judge(with_ids) == Finding("changed")

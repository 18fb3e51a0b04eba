import pytest

from kvmesh.core.routing.choice.split_forms import CHOICES, PROMPTS, UNREAD, why_whole


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[]}',
        b'{"prompt":"a"}',
        b'{"prompt": [ "a" ]}',
        b'{"prompt":[1, 2, 3]}',
        b'{"prompt":[[1, 2, 3]]}',
        b'{"prompt":"a","n":1,"best_of":1,"echo":false,"prompt_logprobs":null,"logprobs":3}',
        b'{"prompt":"a","kv_transfer_params":null,"bootstrap_room": null}',
    ],
)
def test_one_prompt_with_one_answer_may_be_split(body: bytes) -> None:
    assert why_whole(body) == ""


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"prompt":["a","b"]}', PROMPTS),
        (b'{"prompt":[ [1], [2]]}', PROMPTS),
        (b'{"prompt":[]}', PROMPTS),
        (b'{"messages":[],"n":2}', CHOICES),
        (b'{"prompt":"a","n":10000000000000000000000000}', CHOICES),
        (b'{"prompt":"a","best_of":3}', CHOICES),
        (b'{"prompt":"a","use_beam_search":true}', "beam search"),
        (b'{"prompt":"a","echo":true}', "echo"),
        (b'{"prompt":"a","prompt_logprobs":0}', "prompt_logprobs"),
        (b'{"prompt":"","prompt_embeds":"AAAA"}', "prompt_embeds"),
        (b'{"prompt":"a","kv_transfer_params":{}}', "a transfer of its own"),
        (b'{"prompt":"a","bootstrap_room":[7]}', "a transfer of its own"),
        (b'{"n":"two"}', UNREAD),
        (b"[]", UNREAD),
        (b'{"prompt":[}', UNREAD),
        (b"\xff", UNREAD),
    ],
)
def test_anything_else_stays_whole_and_says_why(body: bytes, why: str) -> None:
    assert why_whole(body) == why

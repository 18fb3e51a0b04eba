from itertools import pairwise

import pytest

from kvmesh.core.prompts.byte_tokenizer import ByteTokenizer
from kvmesh_lab.traces.prompts import PromptUnit, PromptWriter
from kvmesh_lab.traces.trace import TraceRequest


def request(*ids: int, tokens: int, index: int = 0) -> TraceRequest:
    return TraceRequest(
        index=index, timestamp_ms=0, input_tokens=tokens, output_tokens=1, block_ids=ids
    )


def count(prompt: str | list[int], unit: PromptUnit) -> int:
    return len(prompt.split()) if unit == "words" and isinstance(prompt, str) else len(prompt)


@pytest.mark.parametrize("unit", ["bytes", "words", "token-ids"])
def test_a_prompt_has_exactly_the_asked_tokens(unit: PromptUnit) -> None:
    writer = PromptWriter(64, unit, "salt")

    for tokens in (1, 63, 64, 65, 128):
        ids = tuple(range(-(-tokens // 64)))
        assert count(writer.write(request(*ids, tokens=tokens)), unit) == tokens


@pytest.mark.parametrize("unit", ["bytes", "words", "token-ids"])
def test_equal_ids_give_equal_prefixes_and_other_ids_other_text(unit: PromptUnit) -> None:
    writer = PromptWriter(64, unit, "salt")

    short = writer.write(request(1, 2, tokens=128))
    long = writer.write(request(1, 2, 3, tokens=170, index=1))
    other = writer.write(request(1, 9, tokens=128, index=2))

    assert long[: len(short)] == short
    shared = next(i for i in range(len(short)) if other[i] != short[i])
    assert count(short[:shared], unit) in range(64, 80)


def test_a_byte_prompt_is_as_many_tokens_of_the_byte_tokenizer() -> None:
    prompt = PromptWriter(512, "bytes", "").write(request(4, 5, tokens=777))

    assert isinstance(prompt, str)
    assert len(ByteTokenizer().encode(prompt, add_special_tokens=True)) == 777


def test_token_ids_are_in_every_vocabulary() -> None:
    prompt = PromptWriter(512, "token-ids", "").write(request(4, 5, tokens=1000))

    assert all(isinstance(token, int) and 32 <= token < 128 for token in prompt)


def test_tokens_without_a_hash_id_are_unique_to_the_request() -> None:
    writer = PromptWriter(16, "bytes", "")

    first = writer.write(request(1, tokens=40, index=0))
    second = writer.write(request(1, tokens=40, index=1))

    assert first[:16] == second[:16]
    assert first[16:] != second[16:]


def test_another_salt_shares_nothing() -> None:
    wanted = request(1, 2, 3, tokens=192)

    prompts = [PromptWriter(64, "bytes", salt).write(wanted) for salt in ("a", "b", "a")]

    assert prompts[0] == prompts[2]
    for one, other in pairwise(prompts):
        assert sum(a == b for a, b in zip(one[::8], other[::8], strict=True)) < 24
        assert one[:16] != other[:16]

import pytest

from kvmesh.core.engines.facts import EngineFacts
from kvmesh.core.engines.prompt_slots import recognise
from tests.unit.core.engines.interviews import conduct


def test_llama_cpp_tells_of_its_slots() -> None:
    page = (
        b'{"default_generation_settings": {"params": {}, "n_ctx": 8192}, "total_slots": 4,'
        b' "model_path": "m.gguf", "build_info": "b7000-0"}'
    )

    found, asked = conduct(recognise("h"), {"/props": page})

    assert found == EngineFacts(prompt_slots=4, slot_tokens=8192)
    assert asked == ["/props"]


@pytest.mark.parametrize(
    "page",
    [
        *(b"", b"{}", b"[]", b'{"total_slots": "4"}', b'{"total_slots": -1}'),
        *(b'{"total_slots": 1e400}', b'{"total_slots": 10000000000000000000000000}'),
        b'{"total_slots": 2, "default_generation_settings": {"n_ctx": -5}}',
        b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_what_tells_of_no_slots_teaches_nothing(page: bytes) -> None:
    assert conduct(recognise(), {"/props": page})[0] is None


def test_a_server_that_says_nothing_of_their_size_has_slots_all_the_same() -> None:
    found, _ = conduct(recognise(), {"/props": b'{"total_slots": 2}'})

    assert found == EngineFacts(prompt_slots=2)

"""What is sent to live sites is what the virtual ones are asked."""

from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.sites.live import Told, messages, row, text, write_model
from kvmesh_lab.simulator.sites.workload import BLOCK, Load, make_conversations


def test_a_chat_has_the_tokens_of_its_blocks_and_those_of_the_turn_before(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(write_model(tmp_path / "model") / "tokenizer.json"))
    longest = max(make_conversations(Load((1.0,), 60.0), 0), key=lambda one: len(one.turns))
    before: list[int] = []

    for number, turn in enumerate(longest.turns):
        chat = messages(longest.turns[: number + 1])
        ids = tokenizer.encode("".join(one["content"] for one in chat)).ids
        assert [one["role"] for one in chat[:2]] == ["system", "user"]
        assert len(ids) == len(turn.request.hashes) * BLOCK
        assert ids[: len(before)] == before
        before = ids
    assert len(longest.turns) > 3
    assert text(longest.turns[0].request.hashes[:1]) != text(longest.turns[0].request.hashes[1:2])


def test_a_row_leaves_out_the_beginning_but_its_failures() -> None:
    told = [Told(0, "a", 1.0, 9.0, "503"), Told(0, "a", 40.0, 100.0), Told(0, "b", 41.0, 200.0)]

    assert row(told).startswith("n    2 p50     150")
    assert "overseas  50.0% failed 1 ['503']" in row(told)

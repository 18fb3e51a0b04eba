import pytest

from kvmesh._native import ActiveSequences
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.silent_growth import UnseenWork, grow_unseen

W = WorkerId("w")
TOKEN_S = 0.01


def make(*, used: int | None = None) -> tuple[ActiveSequences, UnseenWork]:
    return new_sequences(16), UnseenWork(lambda _: TOKEN_S * 1000.0, lambda _: used)


def whole(tokens: int = 100, expected: int = 64) -> Demand:
    return Demand(tokens, tokens, expected, streams=False)


def test_an_answer_that_is_not_streamed_grows_over_time_as_far_as_it_is_expected_to() -> None:
    sequences, work = make()
    sequences.add("r", W, whole(), now=0.0)
    sequences.settle(10.0, lambda _: 1.0)
    began_s, loads = sequences.bookings["r"].output_s, sequences.loads(W)

    seen: list[tuple[int, int]] = []
    for tokens in (0, 12, 13, 28, 29, 64, 1000):
        grow_unseen(sequences, work, began_s + (tokens + 0.5) * TOKEN_S)
        seen.append((loads.active_blocks, loads.expected_blocks))

    assert began_s == pytest.approx(0.15)
    # 100 tokens of prompt leave room for 12 in their seventh block.
    assert seen == [(7, 4), (7, 4), (8, 3), (8, 3), (9, 2), (11, 0), (11, 0)]
    sequences.finish("r")
    assert (loads.active_blocks, loads.expected_blocks) == (0, 0)

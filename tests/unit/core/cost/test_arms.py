import random

from kvmesh.core.blocks.hashing import NO_HASHES, BlockHashes
from kvmesh.core.cost.arms import Arms, Marks
from kvmesh.core.cost.catalogue import PUBLISHED

BASELINE, CANDIDATE = PUBLISHED.plain("predicted-time"), PUBLISHED.plain("lmetric")
BLOCK = 16


def arms_of(share: float, marks: Marks | None = None, salt: str = "1") -> Arms:
    return Arms(BASELINE, CANDIDATE, share, salt, Marks() if marks is None else marks)


def prompt(*tokens: int) -> BlockHashes:
    """Return a prompt of whole blocks, each of one token's repeats."""
    return BlockHashes([one for token in tokens for one in [token] * BLOCK], BLOCK)


def test_the_share_of_the_requests_is_the_candidates() -> None:
    arms = arms_of(0.25)

    candidates = sum(
        arms.find(f"r{number}", "", NO_HASHES) is arms.candidate for number in range(20_000)
    )

    assert 4_700 < candidates < 5_300


def test_a_session_is_in_one_arm_at_every_replica_and_goes_over_once() -> None:
    sessions = [f"s{number}" for number in range(500)]
    first, sibling, later = arms_of(0.25), arms_of(0.25), arms_of(0.6)

    found = [first.find("a", session, NO_HASHES).name for session in sessions]

    assert found == [sibling.find("b", session, NO_HASHES).name for session in sessions]
    for name, session in zip(found, sessions, strict=True):
        if name == "candidate":
            assert later.find("c", session, NO_HASHES).name == "candidate"
    other = arms_of(0.25, salt="2")
    assert found != [other.find("a", session, NO_HASHES).name for session in sessions]


def test_a_conversation_without_a_session_stays_in_its_arm() -> None:
    arms = arms_of(0.5)
    rng = random.Random(1)

    for number in range(100):
        turns = [1, 2, rng.randrange(1 << 30)]
        hashes = prompt(*turns)
        name = arms.find(f"{number}.0", "", hashes).name
        arms.learn(f"{number}.0", "", hashes)
        for turn in range(1, 4):
            turns += [rng.randrange(1 << 30), rng.randrange(1 << 30)]
            hashes = prompt(*turns)
            request_id = f"{number}.{turn}"
            assert arms.find(request_id, "", hashes).name == name
            arms.learn(request_id, "", hashes)
            # A retry, after the place has moved to this turn.
            assert arms.find(request_id, "", hashes).name == name


def test_a_prefix_that_all_share_does_not_put_all_into_one_arm() -> None:
    arms = arms_of(0.5)
    names = []

    for number in range(400):
        # Shorter than a block behind the shared system prompt, or just longer.
        hashes = prompt(1, 2, 3) if number % 2 else prompt(1, 2, 3, number)
        names.append(arms.find(f"r{number}", "", hashes).name)
        arms.learn(f"r{number}", "", hashes)

    assert 120 < names.count("candidate") < 280


def test_prompts_without_a_whole_block_are_not_remembered() -> None:
    marks = Marks()

    marks.move("r", NO_HASHES, 0.5)

    assert len(marks) == 0


def test_sessions_take_no_place_in_the_table() -> None:
    marks = Marks()

    arms_of(0.5, marks).learn("r", "session", prompt(1))

    assert len(marks) == 0

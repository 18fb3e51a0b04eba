from collections.abc import Mapping

from kvmesh.core.buckets.beginnings import chat_keys, text_keys
from kvmesh.core.buckets.homes import HomeOptions
from kvmesh.core.buckets.placing import Placing, RouterReplica
from kvmesh.core.buckets.rules import BucketRequest
from kvmesh.core.buckets.spill import BucketHeat
from kvmesh.core.buckets.turns import MOST_AHEAD

NAMES = ("a", "b", "c")
NOTHING: dict[str, int] = dict.fromkeys(NAMES, 0)


def new_placing(max_homes: int = 1000) -> Placing:
    return Placing("prefix-spill", HomeOptions(max_homes=max_homes))


def send(
    placing: Placing,
    request: BucketRequest,
    hot: Mapping[str, float] = {},
    *,
    note_alive: bool = True,
    names: tuple[str, ...] = NAMES,
    rate: float = 0.1,
) -> str:
    """Place a request; as soon as all buckets have reported, with `note_alive`."""
    for name in NAMES if note_alive else ():
        placing.spill.note_alive(name)
    serving = {
        name: [RouterReplica(name, name, "", heat=BucketHeat(hot.get(name, 0.0), rate, 4))]
        for name in names
    }
    return placing.place(request, serving, NOTHING, 0.0)[0]


def prompt(text: str) -> BucketRequest:
    """Make a prompt of 10,000 tokens, 1,000 ms to prefill."""
    return BucketRequest(prompt_start=text, prompt_chars=40_000, keys=text_keys(0, text))


def home_of(key: str) -> str:
    return send(new_placing(), prompt(key))


def test_a_hot_home_is_left_when_waiting_costs_more_than_the_prefill() -> None:
    home = home_of("k")
    placing = new_placing()
    send(placing, prompt("k"))

    assert send(placing, prompt("k"), {home: 900.0}) == home
    assert send(placing, prompt("k"), {home: 1200.0}) != home


def test_what_was_sent_counts_until_the_bucket_tells_of_itself() -> None:
    home = home_of("k")
    others = [str(number) for number in range(200) if home_of(str(number)) == home]
    placing = new_placing()

    chosen = [send(placing, prompt(key), note_alive=False) for key in others]
    assert (chosen[0], set(chosen)) == (home, set(NAMES))

    placing.spill.note_alive(home)
    placing.spill.note_alive("never sent to")
    assert send(placing, prompt("k"), note_alive=False) == home


def test_a_short_conversation_is_known_though_no_depth_is_reached() -> None:
    placing = new_placing()
    messages = [("user", "I am Alice, a nurse.")]
    first = send(placing, BucketRequest(keys=chat_keys(0, messages), prompt_chars=20))
    messages += [("assistant", "Hello."), ("user", "What am I?")]
    later = BucketRequest(keys=chat_keys(0, messages), prompt_chars=36)

    assert send(placing, later, {first: 99.0}) == first
    moved = send(placing, later, {first: 200.0})
    assert moved != first
    messages += [("assistant", "A nurse."), ("user", "Thanks")]
    assert send(placing, BucketRequest(keys=chat_keys(0, messages), prompt_chars=60)) == moved


def test_a_system_prompt_of_a_line_does_not_crowd_one_bucket() -> None:
    placing = new_placing()
    line = ("system", "You are helpful.")
    found: list[str] = []
    for number in range(300):
        said = [line, ("user", f"I am {number}")]
        request = BucketRequest(opening=f"{number}", prompt_chars=24, keys=chat_keys(0, said))
        found.append(send(placing, request))

    assert found[:5] == found[:1] * 5
    counts = [found.count(name) for name in NAMES]
    assert max(counts) - min(counts) <= MOST_AHEAD + 2


def test_who_only_asks_changes_nothing() -> None:
    placing = new_placing()
    question = BucketRequest(
        prompt_start="k", prompt_chars=40_000, keys=text_keys(0, "k"), asks=True
    )

    assert {send(placing, question, note_alive=False) for _ in range(50)} == {home_of("k")}
    assert len(placing.conversations.homes) == 0


def test_a_prompt_without_a_text_has_a_home() -> None:
    assert send(new_placing(), BucketRequest()) in NAMES

"""A publisher that restarts, and two ways to it that lose messages, against what is delivered."""

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.engines.kv_events.event_source import (
    END_OF_REPLAY,
    EventSource,
    SourceOptions,
    batch_digest,
)
from kvmesh.core.engines.kv_events.source_actions import (
    Action,
    AskReplay,
    Deliver,
    Lost,
    Restarted,
    Resumed,
    SourceCaughtUp,
)


class Publisher:
    def __init__(self, buffer_steps: int) -> None:
        self.buffer_steps = buffer_steps
        self.incarnation = 0
        self.batches: list[bytes] = []

    def publish(self) -> tuple[int, bytes]:
        seq = len(self.batches)
        self.batches.append(f"{self.incarnation}/{seq}".encode())
        return seq, self.batches[-1]

    def restart(self) -> None:
        self.incarnation += 1
        self.batches = []

    def replay(self, first: int) -> list[tuple[int, bytes]]:
        oldest = max(first, len(self.batches) - self.buffer_steps)
        kept = [(seq, self.batches[seq]) for seq in range(oldest, len(self.batches))]
        return [*kept, (END_OF_REPLAY, b"")]


class Follower:
    """Checks every delivery as it comes; `known` is the incarnation delivered from."""

    def __init__(self, publisher: Publisher, source: EventSource) -> None:
        self.publisher, self.source = publisher, source
        self.expected = 0
        self.known: int | None = None
        self.caught_up = False
        self.ask: AskReplay | None = None
        self.saved: bytes | None = None

    def save_or_resume(self, ago: object, now: float) -> None:
        """Note a batch of so many ago; or go on behind it, as a process after this one would."""
        batches = self.publisher.batches
        if isinstance(ago, int):
            self.saved = batches[max(0, len(batches) - 1 - ago)] if batches else self.saved
        elif self.saved is not None:
            seq = int(self.saved.split(b"/")[1])
            self.take(self.source.resume(seq, batch_digest(self.saved), now))

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            self.caught_up = False
            match action:
                case Deliver():
                    incarnation, seq = map(int, action.payload.split(b"/"))
                    assert action.seq == seq == self.expected
                    assert self.known in (None, incarnation), "a restart went unnoticed"
                    self.known, self.expected = incarnation, seq + 1
                case Lost():
                    assert action.first == self.expected <= action.last
                    self.expected = action.last + 1
                case Restarted():
                    self.known, self.expected = None, 0
                case Resumed():
                    assert self.saved is not None
                    incarnation, seq = map(int, self.saved.split(b"/"))
                    assert action.seq == seq
                    assert self.publisher.batches[seq] == self.saved, "of another engine"
                    self.known, self.expected = incarnation, seq + 1
                case AskReplay():
                    self.ask = action
                case SourceCaughtUp():
                    assert action.last_seq == self.expected - 1
                    self.caught_up = True
                case _:
                    raise AssertionError(action)


losses = st.lists(st.booleans(), max_size=12)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.booleans()),
        st.tuples(st.just("answer"), losses),
        st.tuples(st.just("restart"), losses),
        st.tuples(st.just("time"), st.sampled_from([0.5, 3.0, 40.0])),
        st.tuples(st.just("stale"), losses),
        st.tuples(st.just("save"), st.integers(0, 9)),
        st.tuples(st.just("resume"), st.none()),
    ),
    max_size=40,
)


def answer(follower: Follower, lost: list[bool], now: float) -> None:
    """Answer the last ask; the first reply of a fresh connection is never dropped."""
    ask, follower.ask = follower.ask, None
    if ask is None:
        return
    for index, (seq, payload) in enumerate(follower.publisher.replay(ask.first)):
        if index and index < len(lost) and lost[index]:
            continue
        follower.take(follower.source.on_reply(ask.round, seq, payload, now))


@given(steps, st.sampled_from([2, 5, 100]))
def test_every_batch_is_delivered_in_order_or_said_to_be_lost(
    plan: list[tuple[str, object]], buffer_steps: int
) -> None:
    publisher = Publisher(buffer_steps)
    source = EventSource(SourceOptions(pending=4, remembered=64), can_replay=True)
    follower = Follower(publisher, source)
    now = 0.0
    follower.take(source.start(now))
    for kind, argument in plan:
        if kind in {"save", "resume"}:
            follower.save_or_resume(argument, now)
        elif kind == "publish":
            seq, payload = publisher.publish()
            if argument:
                follower.take(source.on_live(seq, payload, now))
        elif kind == "answer":
            assert isinstance(argument, list)
            answer(follower, argument, now)
        elif kind == "restart":
            publisher.restart()
            follower.take(source.on_reconnect(now))
        elif kind == "stale":
            follower.take(source.on_reply(source.rounds - 1, 3, b"9/3", now))
        else:
            assert isinstance(argument, float)
            now += argument
            follower.take(source.on_time(now))

    follower.take(source.on_reconnect(now))
    for _ in range(200):
        if follower.caught_up and follower.ask is None:
            break
        answer(follower, [], now)
    assert follower.caught_up
    assert follower.expected == len(publisher.batches)
    assert follower.known in (None, publisher.incarnation)


@given(
    st.lists(st.tuples(st.sampled_from(["publish", "lose", "restart"]), st.just(0)), max_size=30)
)
def test_without_replay_every_gap_and_every_restart_is_told(plan: list[tuple[str, int]]) -> None:
    publisher = Publisher(0)
    source = EventSource(SourceOptions(), can_replay=False)
    follower = Follower(publisher, source)
    follower.take(source.start(0.0))
    for kind, _ in plan:
        if kind == "restart":
            publisher.restart()
            follower.take(source.on_reconnect(0.0))
            # Unseen until it publishes a number that was delivered before.
            for _ in range(follower.expected and 1):
                follower.take(source.on_live(*publisher.publish(), 0.0))
        else:
            seq, payload = publisher.publish()
            if kind == "publish":
                follower.take(source.on_live(seq, payload, 0.0))

    follower.take(source.on_live(*publisher.publish(), 0.0))
    assert follower.expected == len(publisher.batches)
    assert follower.known == publisher.incarnation
    assert source.deadline is None

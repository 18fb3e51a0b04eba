"""What replicas say to each other of bookings, chosen by bytes: two peers, workers, time."""

from typing import Final
from unittest.mock import patch

from kvmesh.core.admission.shares import Shares
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import grade
from kvmesh.core.members.loads import Demand
from kvmesh.core.routing import event_fold
from kvmesh.errors import CodecError
from tests.fuzz.stories.engine_batches import Chooser
from tests.property.support.records import (
    bare,
    failed,
    grew,
    message,
    named,
    placed,
    state_begins,
    state_ends,
)
from tests.property.support.replica import Replica

PEERS: Final = ("a", "\xfc")
MEMBERS: Final = ("w0", "w1")
NAMES: Final = (*MEMBERS, "stranger", "w\u4e00", "never told")
NUMBERS: Final = (0, 1, 2, 3, 2**32 - 1)
PROMPTS: Final = tuple(
    (len(prompt), grade(prompt, len(prompt)))
    for prompt in ([], [*range(9, 12)], [*range(9, 60)], [*range(9, 600)], [*range(5, 30)])
)
STEPS_S: Final = (0.0, 0.01, 0.3, 0.6, 11.0, 70.0)
SMALL: Final = {"MOST_BOOKINGS": 6, "MOST_IN_ALL": 8, "MOST_STRANGERS": 2}
MAX_STEPS: Final = 60
MANY: Final = 40
"""Workers of a burst: more than the answers that are noted at once."""


class Story:
    """Twins that hear the same, one record by record in Python; they come to know the same."""

    def __init__(self, data: bytes) -> None:
        self._chooser = chooser = Chooser(data)
        settings = chooser.below(8)
        believes, bounded = settings != 1, settings in {2, 3}
        most = SMALL if bounded else {name: getattr(event_fold, name) for name in SMALL}
        with patch.multiple(event_fold, **most):
            self.twins = [
                Replica(*MEMBERS, compiled=compiled, believes=believes)
                for compiled in (False, True)
            ]
            self._now = 0.0
            self._sent = dict.fromkeys(PEERS, 1)
            self._epoch = dict.fromkeys(PEERS, 1)
            for peer in PEERS:
                self._report(peer, *(named(index, name) for index, name in enumerate(NAMES[:4])))
            for _ in range(MAX_STEPS):
                if chooser.is_empty:
                    break
                self._step()

    def _one(self, choices: tuple[str, ...]) -> str:
        return choices[self._chooser.below(len(choices))]

    def _step(self) -> None:
        chooser, peer = self._chooser, self._one(PEERS)
        match chooser.below(12):
            case 0 | 1 | 2 | 3:
                self._report(peer, *self._records())
            case 4:
                self._report(peer, state_begins(), *self._records(), state_ends())
            case 5:
                self._now += STEPS_S[chooser.below(len(STEPS_S))]
                self._sent[peer] = max(
                    1, self._sent[peer] + (0, 0, 0, 0, 1, 2, -1, -9)[chooser.below(8)]
                )
            case 6:
                self._fail(peer)
            case 7:
                self._epoch[peer] = max(1, self._epoch[peer] + chooser.below(3) - 1)
                self._sent[peer] = 1
                self._report(peer, named(0, "w1"))
            case 8:
                shares = Shares(1, 2, [], beat=True) if chooser.below(2) else None
                tail = None if shares is not None else b"\xc1"
                self._report(peer, *self._records(), shares=shares, tail=tail)
            case 9:
                many = range(100, 100 + MANY)
                reported = [named(one, f"many{one}") for one in many]
                reported += [placed(one, one, (3, 12, 12, 1), (1, 2)) for one in many]
                self._report(peer, *reported, *(bare(1, one) for one in many))
            case 10:
                self._act_behind_their_backs(peer)
            case _:
                self._report(peer, *self._records(), cut=chooser.below(200))

    def _fail(self, peer: str) -> None:
        """Have one worker fail so often that something speaks against it."""
        number = NUMBERS[self._chooser.below(5)]
        for verdict in (1, 2, 3, 3, 3):
            place = placed(number, self._chooser.below(2), (3, 12, 12, 1))
            self._report(peer, place, failed(number, verdict, "reset", 0.5, 2.0))

    def _act_behind_their_backs(self, peer: str) -> None:
        chooser = self._chooser
        kind, number, worker = chooser.below(7), NUMBERS[chooser.below(5)], self._one(NAMES)
        for twin in self.twins:
            match kind:
                case 0:
                    twin.sequences.finish(f"{peer}#{number}")
                case 1:
                    twin.sequences.add(
                        f"{peer}#{number}", WorkerId("w0"), Demand(40, 40), self._now
                    )
                case 2:
                    twin.scheduler.remove_worker(WorkerId(worker))
                case 3:
                    twin.scheduler.workers.distrusted.add(WorkerId(worker))
                case 4:
                    twin.membership.add(worker, self._now)
                case 5:
                    twin.peers.remove(peer)
                case _:
                    for booking in twin.sequences.expire(self._now):
                        twin.peers.distrust(booking.owner)
                    twin.peers.forget_strangers(self._now)

    def _records(self) -> list[bytes]:
        return [self._record() for _ in range(self._chooser.below(9))]

    def _record(self) -> bytes:
        chooser = self._chooser
        number = NUMBERS[chooser.below(5)]
        match chooser.below(10):
            case 0 | 1 | 2:
                blocks, graded = PROMPTS[chooser.below(len(PROMPTS))]
                fresh = 4 * chooser.below(3)
                amounts = (blocks, 4 * blocks, fresh, chooser.below(9))
                flags = chooser.below(8)
                return placed(number, chooser.below(6), amounts, graded, flags=flags)
            case 3 | 4 | 5:
                return bare((1, 1, 3)[chooser.below(3)], number)
            case 6:
                return grew(number, (0, 1, 17, 2**40, 2**63)[chooser.below(5)])
            case 7:
                kind = ("", "reset", "503", "\xfc" * 40)[chooser.below(4)]
                waits = (0.0, 2.0, float("nan"))[chooser.below(3)]
                return failed(number, chooser.below(10), kind, waits, waits)
            case 8:
                return named(chooser.below(6), self._one(NAMES))
            case _:
                return (state_begins(), state_ends())[chooser.below(2)]

    def _report(
        self,
        peer: str,
        *reported: bytes,
        shares: Shares | None = None,
        tail: bytes | None = None,
        cut: int | None = None,
    ) -> None:
        data = message(
            *reported, epoch=self._epoch[peer], first_seq=self._sent[peer], shares=shares, tail=tail
        )[:cut]
        self._sent[peer] += len(reported)
        answers = list[object]()
        for twin in self.twins:
            try:
                answers.append(twin.peers.receive(peer, data, self._now))
            except CodecError as error:
                answers.append(str(error))
        assert answers[0] == answers[1], answers


def tell_story(data: bytes) -> None:
    """Tell twins what `data` chooses; they know the same of it afterwards."""
    pure, compiled = Story(data).twins
    assert pure.view() == compiled.view()

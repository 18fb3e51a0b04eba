from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvmesh._native import Booking
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import key_count, key_depth, sharing_keys
from kvmesh.core.members.loads import LOCAL, Demand, new_sequences
from kvmesh.core.members.silent_growth import UnseenWork, grow_unseen

BLOCK_SIZE = 4
LEASE_S = 10.0
TOKEN_MS = 250.0
WORKERS = [WorkerId("w1"), WorkerId("w2"), WorkerId("w3")]

ids = st.integers(0, 12).map(lambda number: f"r{number}")
workers = st.sampled_from(WORKERS)
owners = st.sampled_from([LOCAL, "router-b", "router-c"])


class NaiveBooking:
    def __init__(self, worker: WorkerId, owner: str, demand: Demand, now: float) -> None:
        self.worker = worker
        self.owner = owner
        self.prompt = max(0, demand.prompt_tokens)
        self.uncached = min(max(0, demand.uncached_tokens), self.prompt)
        self.expected = -(-max(0, demand.expected_output_tokens) // BLOCK_SIZE)
        self.keys = demand.keys[: key_count(-(-self.prompt // BLOCK_SIZE))]
        self.streams = demand.streams
        self.output = 0
        self.foreseen = 0
        self.began = now
        self.prefilling = True
        self.renewed = now

    def private(self) -> int:
        whole = -(-(self.prompt + self.output) // BLOCK_SIZE) + self.foreseen
        return whole - key_depth(len(self.keys))

    def still_expected(self) -> int:
        came = -(-(self.prompt + self.output) // BLOCK_SIZE) - -(-self.prompt // BLOCK_SIZE)
        return max(0, self.expected - came - self.foreseen)

    def due(self, now: float) -> int:
        """Count, token by token, the blocks that must have come unseen."""
        ends, tokens = self.prompt, 0
        blocks = [-(-self.prompt // BLOCK_SIZE)]
        while (tokens + 1) * TOKEN_MS <= (now - self.began) * 1000.0 and len(blocks) <= 200:
            tokens += 1
            blocks.append(-(-(ends + tokens) // BLOCK_SIZE))
        return min(self.expected, blocks[-1] - blocks[0])


def shared_of(bookings: list[NaiveBooking]) -> int:
    """Count the blocks that the keys of all stand for, each once."""
    blocks = {
        key: key_depth(number) - key_depth(number - 1)
        for one in bookings
        for number, key in enumerate(one.keys, 1)
    }
    return sum(blocks.values())


class SequencesAgainstModel(RuleBasedStateMachine):
    """Any interleaving of calls, repeats and unknown ids; the model sums everything anew."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.settled = -1e9
        self.sequences = new_sequences(BLOCK_SIZE, lease_s=LEASE_S)
        self.model: dict[str, NaiveBooking] = {}
        self.unseen = dict.fromkeys(WORKERS, (0, 0, 0))

    @rule(pause=st.sampled_from([0.0, 0.5, 4.0, -1.0]))
    def wait(self, pause: float) -> None:
        self.now += pause

    @rule(
        request_id=ids,
        worker=workers,
        owner=owners,
        prompt=st.integers(-2, 40) | st.sampled_from([64, 500, 1500, 6000]),
        uncached=st.integers(-2, 60),
        expected=st.integers(-2, 20),
        family=st.integers(0, 1),
        known=st.sampled_from([0, 15, 16, 40, 256, 400, 1100, 1500]),
        streams=st.booleans(),
    )
    def add(
        self,
        *,
        request_id: str,
        worker: WorkerId,
        owner: str,
        prompt: int,
        uncached: int,
        expected: int,
        family: int,
        known: int,
        streams: bool,
    ) -> None:
        keys = tuple(sharing_keys(range(10000 * family, 10000 * family + known)))
        demand = Demand(prompt, uncached, expected, keys, streams=streams)

        added = self.sequences.add(request_id, worker, demand, self.now, owner=owner)

        assert added == (request_id not in self.model)
        if added:
            self.model[request_id] = NaiveBooking(worker, owner, demand, self.now)

    @rule(request_id=ids)
    def first_token(self, request_id: str) -> None:
        booking = self.sequences.first_token(request_id, self.now)

        naive = self.model.get(request_id)
        assert (booking is not None) == (naive is not None and naive.prefilling)
        if naive is None or booking is None:
            return
        assert booking.service_s >= 0.0
        naive.renewed = self.now
        for one in self.model.values():
            if one is naive:
                break
            if one.worker == naive.worker and not one.streams and one.prefilling:
                one.prefilling, one.began = False, self.now
        naive.prefilling, naive.began = False, self.now

    @rule(request_id=ids, output=st.integers(-1, 30))
    def grow(self, request_id: str, output: int) -> None:
        self.sequences.grow(request_id, output, self.now)

        naive = self.model.get(request_id)
        if naive is not None:
            naive.renewed = max(naive.renewed, self.now)
            if output > naive.output:
                naive.output, naive.foreseen = output, 0

    @rule(reported=st.dictionaries(workers, st.integers(0, 60) | st.integers(0, 3000)))
    def grow_unseen(self, reported: dict[WorkerId, int]) -> None:
        grow_unseen(self.sequences, UnseenWork(lambda _: TOKEN_MS, reported.get), self.now)

        for worker in WORKERS:
            mine = [one for one in self.model.values() if one.worker == worker]
            growing = [one for one in mine if not (one.streams or one.prefilling or one.output)]
            for one in growing:
                one.foreseen = one.due(self.now)
            due = sum(one.foreseen for one in growing)
            if worker not in reported or not due:
                continue
            certain = shared_of(mine) + sum(one.private() for one in mine) - due
            certain -= sum(
                one.private() + key_depth(len(one.keys)) for one in mine if one.prefilling
            )
            room = min(due, max(0, reported[worker] - certain))
            for one in growing:
                one.foreseen = one.foreseen * room // due

    @rule(request_id=ids)
    def finish(self, request_id: str) -> None:
        booking = self.sequences.finish(request_id)

        assert (booking is not None) == (self.model.pop(request_id, None) is not None)

    @rule(request_ids=st.lists(ids, max_size=4))
    def renew(self, request_ids: list[str]) -> None:
        self.sequences.renew(request_ids, self.now)

        for one in request_ids:
            if one in self.model:
                self.model[one].renewed = max(self.model[one].renewed, self.now)

    @rule()
    def expire(self) -> None:
        gone = self.sequences.expire(self.now)

        late = [one for one, naive in self.model.items() if naive.renewed < self.now - LEASE_S]
        self._forget(gone, late)

    @rule(worker=workers)
    def remove_worker(self, worker: WorkerId) -> None:
        gone = self.sequences.remove_worker(worker)

        self.unseen[worker] = (0, 0, 0)
        self._forget(gone, [one for one, naive in self.model.items() if naive.worker == worker])

    @rule(owner=owners)
    def remove_owner(self, owner: str) -> None:
        gone = self.sequences.remove_owner(owner)

        self._forget(gone, [one for one, naive in self.model.items() if naive.owner == owner])

    @rule(
        worker=workers,
        requests=st.integers(0, 5),
        blocks=st.integers(0, 50),
        tokens=st.integers(0, 99),
    )
    def correct(self, worker: WorkerId, requests: int, blocks: int, tokens: int) -> None:
        self.sequences.correct(worker, requests, blocks, tokens)

        self.unseen[worker] = (requests, blocks, tokens)

    @rule(slow=st.booleans())
    def settle(self, slow: bool) -> None:
        self.sequences.settle(self.now, lambda _: 1e9 if slow else 0.0)

        if 0.0 <= self.now - self.settled < 0.01:
            return
        self.settled = self.now
        for worker in WORKERS:
            mine = [
                (name, one)
                for name, one in self.model.items()
                if one.worker == worker and one.prefilling
            ]
            for name, one in mine:
                begun = self.now >= self.sequences.loads(worker).progress_s
                if one.streams or not begun or (slow and one.uncached):
                    break
                one.prefilling = False
                one.began = self.sequences.bookings[name].output_s

    def _forget(self, gone: list[Booking], expected: list[str]) -> None:
        assert [one.request_id for one in gone] == expected
        for one in expected:
            del self.model[one]

    @invariant()
    def sums_equal_the_model(self) -> None:
        for worker in WORKERS:
            mine = [one for one in self.model.values() if one.worker == worker]
            loads = self.sequences.loads(worker)
            unseen_requests, unseen_blocks, unseen_tokens = self.unseen[worker]
            blocks = shared_of(mine) + sum(one.private() for one in mine)
            waiting = [one for one in mine if one.prefilling]
            assert loads.booked_requests == len(mine)
            assert loads.active_requests == len(mine) + unseen_requests
            assert loads.booked_blocks == blocks
            assert loads.active_blocks == blocks + unseen_blocks
            prompts = sum(one.prompt for one in mine)
            assert loads.prompt_tokens == prompts + unseen_blocks * BLOCK_SIZE
            backlog = sum(one.uncached for one in waiting)
            assert loads.prefill_tokens == backlog + unseen_tokens
            assert len(loads.prefilling) == len(waiting)
            assert loads.silent == sum(not one.streams for one in waiting)
            assert loads.expected_blocks == sum(one.still_expected() for one in mine)
            assert loads.wait_ms(1.0, self.now) >= 0.0

    @invariant()
    def owners_and_totals_agree(self) -> None:
        statistics = self.sequences.statistics()
        assert statistics.active_requests == len(self.model)
        for owner in (LOCAL, "router-b", "router-c"):
            mine = [one for one, naive in self.model.items() if naive.owner == owner]
            assert [one.request_id for one in self.sequences.owned(owner)] == mine

    def teardown(self) -> None:
        for request_id in list(self.model):
            self.sequences.finish(request_id)
        for worker in WORKERS:
            self.sequences.correct(worker, 0, 0, 0)
            loads = self.sequences.loads(worker)
            sums = (
                loads.prefill_tokens,
                loads.prompt_tokens,
                loads.active_requests,
                loads.active_blocks,
                loads.expected_blocks,
                loads.silent,
            )
            assert sums == (0, 0, 0, 0, 0, 0)
            assert not loads.prefilling
            assert not loads.shared


TestSequencesAgainstModel = SequencesAgainstModel.TestCase

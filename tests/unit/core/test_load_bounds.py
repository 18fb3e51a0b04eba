from kvmesh.core.events import WorkerId
from kvmesh.core.load_bounds import Extent, Line, LoadBounds
from kvmesh.core.loads import Demand
from kvmesh.core.membership import Membership
from kvmesh.core.sequences import ActiveSequences
from kvmesh.core.worker_registry import WorkerRegistry
from kvmesh.core.worker_state import WorkerState

WORKERS = tuple(WorkerId(f"w{number}") for number in range(4))
STRANGER = WorkerId("stranger")
MS_PER_TOKEN = 2.0
TEN_TOKENS = Extent(own=10.0, shared=0.0, fixed=0.0)


class Fleet:
    def __init__(self) -> None:
        self.sequences = ActiveSequences(16)
        self.registry = WorkerRegistry(Membership(), self.sequences)
        self.states = self.registry.states(WORKERS)
        self.made: list[WorkerId] = []
        self.bounds = LoadBounds(self.line)
        self.update()

    def line(self, state: WorkerState, fleet_ms_per_token: float) -> Line:
        self.made.append(state.worker)
        loads = state.loads
        base = fleet_ms_per_token * loads.prompt_tokens
        return Line(base, fleet_ms_per_token, float(loads.active_blocks))

    def add(self, number: int, tokens: int) -> None:
        self.sequences.add(f"{number}", WORKERS[number], Demand(tokens, tokens), now=0.0)

    def update(self, ms_per_token: float = MS_PER_TOKEN) -> None:
        self.made.clear()
        self.bounds.update(self.states, self.sequences.changed, ms_per_token)
        self.sequences.changed.clear()


def test_only_the_lines_of_changed_workers_are_made_anew() -> None:
    fleet = Fleet()
    fleet.sequences.changed.add(STRANGER)

    fleet.add(0, 300)
    fleet.add(2, 100)
    fleet.update()

    assert sorted(fleet.made) == ["w0", "w2"]
    assert fleet.bounds.find_below(220.0, TEN_TOKENS) == [1, 2, 3]
    assert fleet.bounds.find_below(219.0, TEN_TOKENS) == [1, 3]
    assert fleet.bounds.find_below(19.0, TEN_TOKENS) == []


def test_what_may_be_shared_lowers_a_bound_and_what_is_fixed_raises_it() -> None:
    fleet = Fleet()
    fleet.add(0, 160)
    fleet.update()

    for shared, low in ((4.0, 348.0), (99.0, 342.0)):
        extent = Extent(10.0, shared, 12.0)
        assert fleet.bounds.find_below(low, extent) == [0, 1, 2, 3]
        assert fleet.bounds.find_below(low - 1.0, extent) == [1, 2, 3]
    assert fleet.bounds.least(Extent(10.0, 4.0, 12.0)) == 28.0
    assert fleet.bounds.least(Extent(10.0, 99.0, 12.0)) == 22.0


def test_the_least_bound_follows_the_loads() -> None:
    fleet = Fleet()
    for number in (0, 1, 3):
        fleet.add(number, 100 + number)
    fleet.update()
    assert (fleet.bounds.find_least(TEN_TOKENS), fleet.bounds.least(TEN_TOKENS)) == (2, 20.0)

    fleet.add(2, 90)
    fleet.update()
    assert (fleet.bounds.find_least(TEN_TOKENS), fleet.bounds.least(TEN_TOKENS)) == (2, 200.0)
    assert fleet.bounds.find_least(Extent(10.0, 6.5, 0.0)) == 2

    fleet.sequences.finish("3")
    fleet.update()
    assert (fleet.bounds.find_least(TEN_TOKENS), fleet.bounds.least(TEN_TOKENS)) == (3, 20.0)


def test_more_to_share_makes_a_bound_the_least() -> None:
    fleet = Fleet()
    for number, tokens in enumerate((100, 100, 161, 99)):
        fleet.add(number, tokens)
    fleet.update(0.01)

    assert fleet.bounds.find_least(Extent(10.0, 7.0, 0.0)) == 3
    assert fleet.bounds.find_least(Extent(10.0, 9.0, 0.0)) == 2


def test_only_workers_of_the_fleet_have_a_place() -> None:
    fleet = Fleet()

    assert fleet.bounds.places == {worker: place for place, worker in enumerate(WORKERS)}
    assert fleet.bounds.states is fleet.states


def test_a_slight_change_of_the_fleets_speed_scales_and_a_larger_one_makes_all_anew() -> None:
    fleet = Fleet()
    fleet.add(0, 300)

    fleet.update(1.98)
    assert fleet.made == ["w0"]
    assert fleet.bounds.scale == 0.99
    assert fleet.bounds.find_below(20.0, TEN_TOKENS) == [1, 2, 3]

    fleet.update(2.02)
    assert fleet.made == []
    assert fleet.bounds.scale == 1.0

    fleet.update(1.95)
    assert fleet.made == list(WORKERS)
    assert fleet.bounds.scale == 1.0
    assert fleet.bounds.find_below(19.5, TEN_TOKENS) == [1, 2, 3]


def test_another_fleet_makes_all_lines_anew() -> None:
    fleet = Fleet()

    fleet.states = fleet.registry.states(WORKERS[:2])
    fleet.update()

    assert fleet.made == ["w0", "w1"]
    assert WORKERS[2] not in fleet.bounds.places


def test_the_least_bound_depends_on_the_prompts_length() -> None:
    registry = WorkerRegistry(Membership(), ActiveSequences(16))
    states = tuple(registry.state(WorkerId(name)) for name in ("w1", "w2"))
    lines = {"w1": Line(0.0, 2.0, 0.0), "w2": Line(5.0, 1.0, 0.0)}
    bounds = LoadBounds(lambda state, rate: lines[state.worker])  # noqa: ARG005  # the name is LoadBounds' own
    bounds.update(states, (), 1.0)

    assert bounds.find_least(TEN_TOKENS) == 1
    assert bounds.find_least(Extent(own=0.5, shared=0.0, fixed=0.0)) == 0


def test_waiting_counts_for_as_much_as_the_prompt_says() -> None:
    fleet = WorkerRegistry(Membership(), ActiveSequences(16))
    states = tuple(fleet.state(WorkerId(name)) for name in ("w1", "w2"))
    waits = {"w1": 30.0, "w2": 10.0}
    bounds = LoadBounds(lambda state, rate: Line(5.0, rate, 0.0, waits[state.worker]))
    bounds.update(states, (), 1.0)
    extent = Extent(10.0, 0.0, 0.0, crowd=0.5)

    assert bounds.least(extent) == 20.0
    assert bounds.find_least(extent) == 1
    assert bounds.find_below(20.0, extent) == [1]
    assert bounds.find_below(30.0, extent) == [0, 1]

from kvmesh.core.events import WorkerId
from kvmesh.core.load_order import LoadOrder
from kvmesh.core.loads import Demand
from kvmesh.core.membership import Membership
from kvmesh.core.sequences import ActiveSequences
from kvmesh.core.worker_registry import WorkerRegistry

WORKERS = [WorkerId(f"w{number}") for number in range(4)]


def test_workers_move_as_their_loads_change() -> None:
    sequences = ActiveSequences(16)
    registry = WorkerRegistry(Membership(), sequences)
    order = LoadOrder(lambda state: float(state.loads.prompt_tokens))
    order.rebuild(registry.state(worker) for worker in WORKERS)
    assert order.most_requests == 0

    sequences.add("a", WORKERS[0], Demand(300, 300), now=0.0)
    sequences.add("b", WORKERS[2], Demand(100, 100), now=0.0)
    sequences.add("c", WORKERS[2], Demand(0, 0), now=0.0)
    order.update([*WORKERS, WorkerId("stranger")])

    assert [(key, worker) for key, worker, _ in order] == [
        (0.0, "w1"),
        (0.0, "w3"),
        (100.0, "w2"),
        (300.0, "w0"),
    ]
    assert order.most_requests == 2
    sequences.finish("b")
    sequences.finish("c")
    order.update([WORKERS[2]])
    assert [worker for _, worker, _ in order] == ["w1", "w2", "w3", "w0"]
    assert order.most_requests == 1


def test_only_workers_of_the_fleet_have_a_state() -> None:
    sequences = ActiveSequences(16)
    registry = WorkerRegistry(Membership(), sequences)
    order = LoadOrder(lambda state: float(state.loads.prompt_tokens))
    assert order.most_requests == 0

    sequences.add("a", WORKERS[0], Demand(300, 300), now=0.0)
    order.rebuild([registry.state(WORKERS[0])])

    assert order.state(WORKERS[0]) is registry.state(WORKERS[0])
    assert order.state(WORKERS[1]) is None
    assert order.most_requests == 1

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.last_known import KnownWorker, LastKnownFleet


def known(name: str, active: int = 0, *models: str, usable: bool = True) -> KnownWorker:
    return KnownWorker(WorkerId(name), f"http://{name}", models, active, usable)


def choose(fleet: LastKnownFleet, model: str = "", pinned: str = "", *excluded: str) -> str | None:
    pin = WorkerId(pinned) if pinned else None
    found = fleet.choose(model, pin, {WorkerId(name) for name in excluded})
    return found.worker if found else None


def test_the_least_loaded_worker_is_chosen_until_it_has_as_much_as_the_others() -> None:
    fleet = LastKnownFleet()
    fleet.update([known("a", 4), known("b", 1)])

    assert [choose(fleet) for _ in range(3)] == ["b"] * 3
    assert len({choose(fleet), choose(fleet)}) == 2


def test_adapters_are_those_last_told() -> None:
    fleet = LastKnownFleet()
    live = fleet.adapters

    fleet.update([KnownWorker(WorkerId("a"), "http://a", (), 0, usable=True, adapters=("x",))])
    told = set(live)
    fleet.update([known("b")])

    assert (told, live) == ({"x"}, set())


def test_equal_workers_take_turns() -> None:
    fleet = LastKnownFleet()
    fleet.update([known("a"), known("b"), known("c")])

    chosen = []
    for _ in range(6):
        worker = choose(fleet)
        assert worker is not None
        chosen.append(worker)
        fleet.release(WorkerId(worker))

    assert sorted(chosen) == ["a", "a", "b", "b", "c", "c"]
    assert chosen[:3] == chosen[3:]


def test_a_release_takes_one_request_off() -> None:
    fleet = LastKnownFleet()
    fleet.update([known("a"), known("b", 2)])

    assert [choose(fleet) for _ in range(2)] == ["a", "a"]
    fleet.release(WorkerId("a"))
    assert choose(fleet) == "a"
    fleet.release(WorkerId("a"))
    fleet.release(WorkerId("a"))
    fleet.release(WorkerId("never chosen"))
    assert [choose(fleet) for _ in range(2)] == ["a", "a"]


def test_only_workers_that_may_take_the_request_are_chosen() -> None:
    fleet = LastKnownFleet()
    assert (choose(fleet), fleet.usable) == (None, False)
    fleet.update([known("a", 0, "m"), known("b", 9), known("c", 0, usable=False)])

    assert fleet.usable
    assert choose(fleet, "m") == "a"
    assert choose(fleet, "other") == "b"
    assert choose(fleet, "m", "b") == "b"
    assert choose(fleet, "m", "", "a") == "b"
    assert choose(fleet, "m", "", "a", "b") is None
    assert choose(fleet, "", "c") is None

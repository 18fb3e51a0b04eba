from kvmesh.actors.kernel import Effect, Send, Wake
from kvmesh.actors.messages import Tick
from kvmesh_lab.mocker.actor import (
    CancelGeneration,
    EngineStepped,
    Generate,
    GenerationRefused,
    SimulatedEngine,
    StepDue,
)
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import BlocksStored, EngineRequest
from kvmesh_lab.mocker.model.timing import PROFILES

OPTIONS = EngineOptions(block_size=4, num_gpu_blocks=10, timing=PROFILES["linear"])


def engine() -> SimulatedEngine:
    return SimulatedEngine("engine-1", OPTIONS, listener="driver")


def reported(effects: list[Effect]) -> EngineStepped:
    message = next(effect.message for effect in effects if isinstance(effect, Send))
    assert isinstance(message, EngineStepped)
    return message


def test_a_request_starts_a_step_and_is_told_when_it_ends() -> None:
    actor = engine()
    request = EngineRequest("a", [1], 5, 2)

    assert list(actor.receive(Generate(request), 0.0)) == [Wake(0.0, StepDue())]
    (wake,) = actor.receive(StepDue(), 0.0)
    assert wake == Wake((5 + 5 * 0.05) / 1000, StepDue())

    first = list(actor.receive(StepDue(), 0.1))
    assert reported(first).step.prefilled == [request]
    assert isinstance(reported(first).step.events[0], BlocksStored)
    assert isinstance(first[1], Wake)

    last = list(actor.receive(StepDue(), 0.2))
    assert reported(last).step.finished == [request]
    assert len(last) == 1


def test_requests_of_one_moment_share_the_first_step() -> None:
    actor = engine()
    requests = [EngineRequest(name, [], 5, 1) for name in "ab"]
    effects = [e for request in requests for e in actor.receive(Generate(request), 0.0)]
    assert len(effects) == 1

    list(actor.receive(StepDue(), 0.0))

    assert reported(list(actor.receive(StepDue(), 0.1))).step.produced == requests


def test_a_request_during_a_step_waits_for_the_next() -> None:
    actor = engine()
    list(actor.receive(Generate(EngineRequest("a", [], 5, 2)), 0.0))
    list(actor.receive(StepDue(), 0.0))

    assert list(actor.receive(Generate(EngineRequest("b", [], 5, 1)), 0.0)) == []

    list(actor.receive(StepDue(), 0.1))
    assert [r.request_id for r in reported(list(actor.receive(StepDue(), 0.2))).step.produced] == [
        "a",
        "b",
    ]


def test_what_can_never_fit_is_refused() -> None:
    (effect,) = engine().receive(Generate(EngineRequest("a", [], 50, 2)), 0.0)

    assert isinstance(effect, Send)
    assert isinstance(effect.message, GenerationRefused)
    assert "more than the KV cache holds" in effect.message.reason


def test_a_cancelled_request_is_gone_at_once_and_the_engine_falls_idle() -> None:
    actor = engine()
    list(actor.receive(Generate(EngineRequest("a", [], 5, 9)), 0.0))
    list(actor.receive(StepDue(), 0.0))

    assert list(actor.receive(CancelGeneration("a"), 0.0)) == []

    assert actor.model.pool.active_blocks == 0
    assert len(list(actor.receive(StepDue(), 0.1))) == 1
    (restarted,) = actor.receive(Generate(EngineRequest("b", [], 5, 1)), 1.0)
    assert isinstance(restarted, Wake)


def test_other_messages_are_ignored() -> None:
    assert list(engine().receive(Tick(), 0.0)) == []

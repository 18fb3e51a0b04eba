import pytest

from kvmesh.app.members.warning_lines import WORKERLESS
from kvmesh.app.picker.health import LIVENESS, PROCESSOR, PickerHealth


@pytest.mark.parametrize("service", ["", PROCESSOR, "readiness", "inference-extension"])
def test_it_serves_while_requests_may_come(service: str) -> None:
    reasons = iter(["catching up with the journal", "", "draining"])
    health = PickerHealth(lambda: next(reasons))

    assert [health(service) for _ in range(3)] == [False, True, False]


@pytest.mark.parametrize("reason", sorted(WORKERLESS))
def test_it_serves_without_a_worker_since_it_tells_clients_when_to_come_again(reason: str) -> None:
    assert PickerHealth(lambda: reason)(PROCESSOR) is True


def test_it_lives_while_it_cannot_serve() -> None:
    assert PickerHealth(lambda: "draining")(LIVENESS) is True


def test_a_service_that_is_not_here_is_not_known() -> None:
    assert PickerHealth(lambda: "")("grpc.other") is None

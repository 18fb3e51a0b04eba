import pytest

from kvmesh.app.router.admission_admin import changed
from kvmesh.app.serve.admission import AdmissionLimits
from kvmesh.errors import RequestError

LIMITS = AdmissionLimits(200.0, "fcfs", 1024, 256, 30.0, 4096, 0.0, 0)


def test_what_is_named_is_changed() -> None:
    found = changed(LIMITS, b'{"max_queued": 7, "max_wait_s": 1.5}')

    assert (found.max_queued, found.max_wait_s, found.quantum_tokens) == (7, 1.5, 4096)


@pytest.mark.parametrize("name", [*AdmissionLimits.__struct_fields__])
@pytest.mark.parametrize("value", ["1e308", "9" * 25, "9" * 5000, "-1", "NaN", "null", "[]"])
def test_no_bound_of_admission_is_beyond_all_bounds(name: str, value: str) -> None:
    with pytest.raises(RequestError, match=r"^/admin/admission: ") as caught:
        changed(LIMITS, f'{{"{name}": {value}}}'.encode())

    assert caught.value.status == 400


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'{"max_queued": "\xff"}', b"[" * 10_000])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError, match=r"^/admin/admission: "):
        changed(LIMITS, body)

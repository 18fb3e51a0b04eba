import msgspec

from kvmesh.app.meta.view import readable
from kvmesh.app.views.tenant_view import TenantStatus


def test_what_nobody_can_read_is_no_answer() -> None:
    status = TenantStatus("r0", ready=True, tenant="t")

    answers = readable([b"", b"{}", msgspec.json.encode(status), b"\xff"], TenantStatus)

    assert list(answers) == [status]

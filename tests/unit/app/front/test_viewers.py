import pytest

from kvmesh.app.front.viewers import Viewers, viewers_of
from kvmesh.core.admission.access import Viewer
from kvmesh.errors import RequestError
from kvmesh.settings.roles import RouterSettings
from kvmesh.transport.http.forward.plan import Outcome
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.client import UpstreamFailure
from kvmesh.transport.http.wire.headers import Headers

TENANT = (b"x-kvmesh-tenant", b"ann")
VIEW, OPERATE = (b"x-kvmesh-roles", b"infer view"), (b"x-kvmesh-roles", b"operate")
ALL, OWN, APART = None, Viewer("ann"), Viewer("ann", apart=True)


def request(*headers: tuple[bytes, bytes]) -> Request:
    return Request("GET", b"/", list(headers))


@pytest.mark.parametrize(
    ("apart", "checked", "headers", "seen"),
    [
        # No keys, no isolation: as it always was, but for what a front door before says.
        (False, False, (), ALL),
        (False, False, (TENANT,), ALL),
        (False, False, (TENANT, VIEW), OWN),
        (False, False, (TENANT, OPERATE), ALL),
        # No keys, isolation: a gateway's tenant header limits, whatever roles a client adds.
        (True, False, (), ALL),
        (True, False, (TENANT,), APART),
        (True, False, (TENANT, VIEW), APART),
        (True, False, (TENANT, OPERATE), APART),
        (True, False, ((b"x-kvmesh-tenant", b""),), Viewer("", apart=True)),
        # Keys: the door's own word.
        (False, True, (TENANT, VIEW), OWN),
        (True, True, (TENANT, VIEW), APART),
        (True, True, (TENANT, OPERATE), ALL),
    ],
)
def test_who_may_see_what(
    apart: bool, checked: bool, headers: Headers, seen: Viewer | None
) -> None:
    assert Viewers("X-Kvmesh-Tenant", apart=apart, checked=checked).of(request(*headers)) == seen


def test_two_tenants_are_none() -> None:
    with pytest.raises(RequestError, match="2 headers"):
        Viewers("x-kvmesh-tenant").of(request(TENANT, TENANT, VIEW))


class Plan:
    """Counts what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def next_target(self) -> None:
        self.asked.append("next_target")

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool:
        self.asked.append(failure.message)
        return True

    def on_head(self, status: int) -> Headers:
        reported = [(b"x-kvmesh-worker", b"%d" % status), (b"x-kvmesh-overlap-blocks", b"7")]
        reported += [(b"x-kvmesh-fetch-from", b"w0"), (b"x-kvmesh-whole", b"little to prefill")]
        return [*reported, (b"x-kvmesh-prefill-worker", b"p0")]

    def on_tokens(self, tokens: int) -> None:
        self.asked.append(str(tokens))

    def on_finish(self, outcome: Outcome) -> None:
        self.asked.append(outcome.kind)


def test_overlap_is_told_to_those_who_may_know_it() -> None:
    shared, apart = Viewers("x-kvmesh-tenant"), Viewers("x-kvmesh-tenant", apart=True)
    checked = Viewers("x-kvmesh-tenant", checked=True)

    for one in (shared, checked):
        assert not one.hides(request())
        assert not one.hides(request(TENANT, OPERATE))
        assert one.hides(request(TENANT, VIEW))
    assert not apart.hides(request(TENANT, VIEW))
    with pytest.raises(RequestError, match="2 headers"):
        shared.hides(request(TENANT, TENANT, VIEW))


def test_viewers_are_of_the_settings() -> None:
    assert not viewers_of(RouterSettings(), "x-kvmesh-tenant").apart

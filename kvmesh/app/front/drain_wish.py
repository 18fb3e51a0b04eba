"""What an operator says of a worker that is to drain, and whether that may be believed."""

from typing import Final

import msgspec

from kvmesh.app.front.admin_guard import FORBIDDEN, AdminGuard
from kvmesh.app.front.same_origin import JSON_TYPE, is_foreign
from kvmesh.bounds import UNREADABLE
from kvmesh.errors import RequestError
from kvmesh.transport.http.server.request import Request

PATH: Final = "/admin/drain"
ACCEPTED: Final = 202
UNSUPPORTED: Final = 415


class DrainWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a POST: a worker, and whether it is to drain or to be used again."""

    worker: str
    draining: bool


def read_wish(request: Request, guard: AdminGuard | None) -> DrainWish:
    """Return what a POST asks for. Raises `RequestError`, 403 for a page of another site: it would
    have the cookie of whoever looks at it; 415 for what a form could send.
    """
    if is_foreign(request):
        raise RequestError(f"{PATH}: a page of another site may not drain", status=FORBIDDEN)
    if guard is not None:
        guard.check(request, PATH)
    kind = request.head.get(b"content-type") or b""
    if kind.partition(b";")[0].strip().lower() != JSON_TYPE:
        raise RequestError(f"{PATH}: send content-type: application/json", status=UNSUPPORTED)
    try:
        return msgspec.json.decode(request.body, type=DrainWish)
    except UNREADABLE as error:
        text = f'{PATH}: {error}; send {{"worker": "worker-1", "draining": true}}'
        raise RequestError(text) from error

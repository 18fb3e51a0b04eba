"""What is foretold of a request with targets at one worker."""

import msgspec

from kvmesh.core.blocks.events import WorkerId


class Forecast(msgspec.Struct, frozen=True):
    """Of one request at `worker`: times in ms, 0 for an unknown `tpot_ms`; the `chance` to miss a
    target. `ttft_ms` counts from the request's arrival, `waited_ms` of it are over; `own_ms` is its
    own prefill, with nobody before it.
    """

    worker: WorkerId
    ttft_ms: float
    tpot_ms: float
    waited_ms: float
    own_ms: float
    chance: float

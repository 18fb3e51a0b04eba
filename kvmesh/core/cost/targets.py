"""How soon a request's tokens shall come: its service level objective."""

import msgspec


class Targets(msgspec.Struct, frozen=True):
    """Times in ms; None: no such target. `ttft_ms`: until the first token, what it waits included.
    `tpot_ms`: for each further token, on average.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None

"""What a case is, and how one ends."""

from collections.abc import Awaitable, Callable
from typing import Final, Generic, Literal, TypeVar

import msgspec

B = TypeVar("B")

Level = Literal["must", "should"]
Verdict = Literal["pass", "fail", "warn", "skip"]
"""`warn`: a rule of level `should` is broken; it does not fail the suite."""

PROTOCOL: Final = (
    "https://github.com/kubernetes-sigs/gateway-api-inference-extension/tree/main/docs/proposals/"
    "004-endpoint-picker-protocol"
)
EXT_PROC: Final = "https://www.envoyproxy.io/docs/envoy/latest/api-v3/service/ext_proc/v3/external_processor.proto"
MODES: Final = (
    "https://www.envoyproxy.io/docs/envoy/latest/api-v3/extensions/filters/http/ext_proc/v3/"
    "processing_mode.proto"
)
HEALTH: Final = "https://github.com/grpc/grpc/blob/master/doc/health-checking.md"
HTTP2: Final = "https://www.rfc-editor.org/rfc/rfc9113.html#section-5.2"
HTTP: Final = "https://www.rfc-editor.org/rfc/rfc9110.html"


class Broken(Exception):  # noqa: N818  it is a finding, not an error of this program
    """The rule of a case does not hold; the message says what was seen in its place."""


class UnreachableError(Broken):
    """No picker answers at the address."""


class NotTried(Exception):  # noqa: N818  as above
    """A case cannot be tried here; the message says why, and what would make it possible."""


class Rule(msgspec.Struct, frozen=True):
    """A sentence of the protocol in own words, and where it stands."""

    text: str
    source: str


class Case(msgspec.Struct, Generic[B], frozen=True):
    """One thing that is tried on a bench `B`.

    `run` returns what is worth a remark, or "", raises `Broken` or `NotTried`.
    """

    name: str
    level: Level
    does: str
    rule: Rule
    run: Callable[[B], Awaitable[str]]


class Result(msgspec.Struct, frozen=True):
    """How a case ended. `remark` says what was seen, `seconds` what it took."""

    name: str
    verdict: Verdict
    level: Level
    does: str
    rule: str
    source: str
    remark: str
    seconds: float


def holds(condition: object, text: str) -> None:
    """Raise `Broken` with `text` unless `condition` is true."""
    if not condition:
        raise Broken(text)

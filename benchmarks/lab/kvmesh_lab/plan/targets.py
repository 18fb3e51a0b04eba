"""What a fleet has to keep: percentiles of times, as `--slo` writes them."""

import re
from typing import Final, Literal

import msgspec

from kvmesh.errors import ConfigError
from kvmesh_lab.report.outcome import RequestOutcome

Figure = Literal["ttft", "tpot", "e2e"]
FIGURES: Final[tuple[Figure, ...]] = ("ttft", "tpot", "e2e")
USUAL_SHARE: Final = 0.9
_TARGET: Final = re.compile(
    r"(?:p(\d{1,2}(?:\.\d{1,3})?):)?(ttft|tpot|e2e)=(\d{1,9}(?:\.\d{1,6})?)(ms|s)"
)
_FORM: Final = "expected e.g. ttft=2s,tpot=50ms or p99:ttft=5s,e2e=30s, times in ms or s"


class Target(msgspec.Struct, frozen=True):
    """`share` (0..1) of all requests have `figure` within `limit_ms`.

    ttft: the time to the first token, from the request's arrival on; tpot: the mean time per
    further token of a request; e2e: until its last token.
    """

    figure: Figure
    limit_ms: float
    share: float = USUAL_SHARE

    @property
    def name(self) -> str:
        """Return it without its limit, as `TTFT p90`."""
        return f"{self.figure.upper() if self.figure != 'e2e' else 'e2e'} p{self.share * 100:g}"


def parse_targets(text: str) -> tuple[Target, ...]:
    """Return the targets that `text` names. Raises `ConfigError` with the form expected."""
    found: list[Target] = []
    for part in text.split(","):
        match = _TARGET.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"--slo {text!r}: {part.strip()!r} is no target; {_FORM}")
        percent, figure, number, unit = match.groups()
        share = USUAL_SHARE if percent is None else float(percent) / 100.0
        limit_ms = float(number) * (1000.0 if unit == "s" else 1.0)
        if not 0.0 < share < 1.0 or limit_ms <= 0.0:
            raise ConfigError(f"--slo {text!r}: {part.strip()!r} must be above 0")
        found.append(Target(figure, limit_ms, share))  # type: ignore[arg-type]  # the pattern's
    return tuple(found)


def figure_ms(outcome: RequestOutcome, figure: Figure) -> float | None:
    """Return a request's time, None where it has none: one token has no time per further one."""
    if figure == "ttft":
        return outcome.ttft_ms
    return outcome.mean_itl_ms() if figure == "tpot" else outcome.latency_ms

"""Bins of the histograms that are shown (`kvmesh._native.Histogram`), as Prometheus reads them."""

from typing import Final

SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
"""Upper bounds for what a client waits for, seconds."""

TOKENS: Final = tuple(float(4**power) for power in range(12))
"""Upper bounds for the tokens of a prompt or answer, 1 to 4,194,304.

Source: those of `gen_ai.client.token.usage` in OpenTelemetry's conventions, without the last two.
"""

MICROSECONDS: Final = tuple(
    scale * 10.0**power for power in (-6, -5, -4, -3, -2) for scale in (1.0, 2.5, 5.0)
)
"""Upper bounds for a decision's phases, 1 us to 50 ms, seconds."""

"""Figures of requests with targets: what met them, and how well that was foretold."""

from typing import Final

from kvmesh.app.figures.figure import Figure, Table
from kvmesh.core.routing.slo.tracker import SloStatistics

# How a figure is read, then what it is.
# fmt: off
SLO: Final = Table[SloStatistics](
    Figure("counter", "kvmesh_slo_requests", lambda one: one.results,
           "Requests with targets by what became of them: met, missed_ttft, missed_tpot, refused "
           "at once since they would have been missed, unserved (failed, or the client left). "
           "Goodput is the rate of met.", ("result",)),
    Figure("counter", "kvmesh_slo_foretold_misses", lambda one: one.foretold_misses,
           "Misses that were expected of the answered ones: the sum of the chances at which they "
           "were sent. Far from those that came, predictions are off."),
    Figure("gauge", "kvmesh_slo_open_requests", lambda one: one.open,
           "Requests with targets that are not over."),
    Figure("gauge", "kvmesh_slo_prediction_ratio", lambda one: {
               "ttft": one.ttft_bias, "tpot": one.tpot_bias},
           "Actual over predicted times, typically (geometric mean); forecasts allow for it.",
           ("time",)),
    Figure("gauge", "kvmesh_slo_prediction_spread", lambda one: {
               "ttft": one.ttft_spread, "tpot": one.tpot_spread},
           "Standard deviation of the logarithm of that ratio.", ("time",)),
)

"""Figures of an endpoint picker's port: who asks, and what is heard there."""

from typing import Final

from kvmesh.app.picker.counts import PickCounts
from kvmesh.app.views.figure import Figure, Table
from kvmesh.core.routing.unwatched import UnwatchedStatistics
from kvmesh.transport.grpc.limits import GrpcStatistics

# How a figure is read, then what it is.
# fmt: off
GATEWAYS: Final = Table[GrpcStatistics](
    Figure("gauge", "kvmesh_gateway_connections", lambda one: one.open_connections,
           "Connections of gateways to this picker."),
    Figure("gauge", "kvmesh_gateway_streams", lambda one: one.open_streams,
           "Requests that gateways keep it informed of, and watches of its gRPC health."),
    Figure("counter", "kvmesh_gateway_calls", lambda one: one.streams,
           "gRPC calls that began."),
    Figure("counter", "kvmesh_gateway_messages", lambda one: one.messages,
           "Messages of gateways that were read."),
    Figure("counter", "kvmesh_gateway_failures", lambda one: {
               "connection refused": one.refused_connections,
               "protocol error": one.protocol_errors, "reset": one.resets,
               "crashed": one.handler_failures},
           "What went wrong at the port of gateways: connections refused or closed for what they "
           "sent, calls that gateways gave up, errors of ours.", ("what",)),
)

PICKS: Final = Table[PickCounts](
    Figure("counter", "kvmesh_picks", lambda one: {
               "picked": one.picks, "refused": one.refused, "malformed": one.malformed},
           "Requests that gateways asked about, by the answer: an endpoint, an error for "
           "the client, or that the message was none.", ("told",)),
    Figure("counter", "kvmesh_picks_followed", lambda one: {
               "to the end": one.followed, "client gone": one.gone, "not told": one.silent},
           "Picked requests by how far the gateway reported them: to the end of the response, until"
           " their client left, or no further than the pick.", ("until",)),
    Figure("histogram", "kvmesh_pick_seconds", lambda one: one.seconds,
           "From the last of a request to its pick, the wait for a worker included."),
    Figure("counter", "kvmesh_pick_modes", lambda one: dict(one.modes),
           "Requests by how their gateway sends bodies of requests and of responses.",
           ("request", "response")),
    Figure("gauge", "kvmesh_picks_open", lambda one: one.open_streams,
           "Requests that gateways keep this picker informed of."),
    Figure("counter", "kvmesh_picks_moved", lambda one: one.moved,
           "Requests that gateways sent to an alternative of the pick."),
    Figure("counter", "kvmesh_pick_messages", lambda one: {
               "read": one.messages, "duplicate": one.duplicates},
           "Messages about requests; duplicates came once too often and were not answered.",
           ("kind",)),
)

UNWATCHED: Final = Table[UnwatchedStatistics](
    Figure("gauge", "kvmesh_picks_unwatched", lambda one: one.open,
           "Requests whose tokens, or all of whose responses, gateways do not show: their prefill "
           "and end are inferred."),
    Figure("counter", "kvmesh_unwatched_prefills", lambda one: {
               "events": one.prefilled_seen, "prediction": one.prefilled_predicted},
           "Prefills of such requests that ended, by what showed it.", ("shown_by",)),
    Figure("counter", "kvmesh_unwatched_ends", lambda one: dict(one.over),
           "Such requests whose end was not reported, by what ended them: the engine's report has "
           "fewer requests than are booked, the predicted end, their age, or their worker left.",
           ("ended_by",)),
)

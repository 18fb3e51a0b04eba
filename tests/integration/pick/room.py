"""A picker without a process: what decides, workers that nobody runs, and gateways' streams."""

import dataclasses
import time
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any, cast

import msgspec
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2 as modes
from envoy.service.ext_proc.v3 import external_processor_pb2 as wire

from kvmesh.actors.messages import WorkerHeartbeat, WorkerSeen
from kvmesh.app.front.front import PathRoutes
from kvmesh.app.front.tracing import Tracer
from kvmesh.app.front.viewers import Viewers
from kvmesh.app.picker.addresses import Addresses, Located
from kvmesh.app.picker.counts import PickCounts
from kvmesh.app.picker.door import PickDoor
from kvmesh.app.picker.exchange import PickExchange
from kvmesh.app.picker.pick import Pick, PickShared
from kvmesh.app.picker.stream import PickStream
from kvmesh.app.picker.unwatched import UnwatchedPicks
from kvmesh.app.prompts.wiring import check_of, forward_options, reader_of, split_options
from kvmesh.app.router.command import RouterServer
from kvmesh.app.serve.alternatives import Alternatives
from kvmesh.app.serve.gateway import Gateway
from kvmesh.app.serve.prefill import Splits
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.worker_info import WorkerInfo
from kvmesh.settings.requests import FailureSettings
from kvmesh.settings.roles import RouterSettings
from kvmesh.transport.grpc.stream import ignore
from kvmesh.transport.http.server.limits import HttpLimits
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.headers import Headers

DESTINATION = "x-gateway-destination-endpoint"
FULL = modes.ProcessingMode.FULL_DUPLEX_STREAMED
CHAT = b'{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true}'


class Asking:
    """A gateway's stream: what is told to it, and what it hears, as `ProcessingResponse`s."""

    def __init__(self) -> None:
        self.path = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
        self.headers: Headers = ()
        self.peer = "10.9.9.9"
        self.on_message: Any = ignore
        self.on_half_close: Any = ignore
        self.on_reset: Any = ignore
        self.on_resume: Any = ignore
        self.received: list[wire.ProcessingResponse] = []
        self.status: int | None = None
        self.text = ""
        self.full = False
        self.paused = False

    def send(self, *messages: bytes) -> bool:
        assert self.status is None
        self.received += map(wire.ProcessingResponse.FromString, messages)
        return not self.full

    def finish(self, *messages: bytes, status: int = 0, text: str = "") -> None:
        self.send(*messages)
        self.status, self.text = status, text

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    # what a gateway says

    def head(
        self,
        path: str = "/v1/chat/completions",
        *more: tuple[str, str],
        method: str = "POST",
        end: bool = False,
        request_mode: int | None = FULL,
        response_mode: int = FULL,
        subset: list[str] | None = None,
    ) -> "Asking":
        message = wire.ProcessingRequest()
        reported = ((":method", method), (":path", path), (":authority", "gw"), (":scheme", "http"))
        for name, value in (*reported, *more):
            message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
        message.request_headers.end_of_stream = end
        if request_mode is not None:
            message.protocol_config.request_body_mode = cast("Any", request_mode)
            message.protocol_config.response_body_mode = cast("Any", response_mode)
        if subset is not None:
            hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
            hint.update({f"{DESTINATION}-subset": subset})
        return self.say(message)

    def body(self, data: bytes, *, end: bool = True) -> "Asking":
        message = wire.ProcessingRequest()
        message.request_body.body = data
        message.request_body.end_of_stream = end
        return self.say(message)

    def trailers(self, *, response: bool = False) -> "Asking":
        message = wire.ProcessingRequest()
        part = message.response_trailers if response else message.request_trailers
        part.trailers.headers.add(key="x-last", raw_value=b"1")
        return self.say(message)

    def answered(
        self,
        status: int = 200,
        *more: tuple[str, str],
        kind: str = "text/event-stream",
        end: bool = False,
        served: str = "",
        attributes: dict[str, Any] | None = None,
    ) -> "Asking":
        message = wire.ProcessingRequest()
        for name, value in ((":status", str(status)), ("content-type", kind), *more):
            message.response_headers.headers.headers.add(key=name, raw_value=value.encode())
        message.response_headers.end_of_stream = end
        if served:
            message.metadata_context.filter_metadata["envoy.lb"].update(
                {f"{DESTINATION}-served": served}
            )
        if attributes is not None:
            message.attributes["envoy.filters.http.ext_proc"].update(attributes)
        return self.say(message)

    def came(self, data: bytes, *, end: bool = False) -> "Asking":
        message = wire.ProcessingRequest()
        message.response_body.body = data
        message.response_body.end_of_stream = end
        return self.say(message)

    def say(self, message: wire.ProcessingRequest) -> "Asking":
        self.on_message(message.SerializeToString())
        return self

    # what it heard

    @property
    def picked(self) -> str:
        """Return the destination, the same in header and metadata; "" for none."""
        for one in self.received:
            kind = one.WhichOneof("response")
            if kind in {"request_headers", "request_body"} and one.HasField("dynamic_metadata"):
                reported = one.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DESTINATION]
                common = getattr(one, kind).response
                assert common.clear_route_cache
                assert self.set_in(common.header_mutation)[DESTINATION] == reported.string_value
                return str(reported.string_value)
        return ""

    @staticmethod
    def set_in(mutation: Any) -> dict[str, str]:
        """Return the headers that are set."""
        found = {}
        for one in mutation.set_headers:
            assert one.append_action == one.OVERWRITE_IF_EXISTS_OR_ADD
            found[one.header.key] = one.header.raw_value.decode("latin-1")
        return found

    def kinds(self) -> list[str]:
        return [str(one.WhichOneof("response")) for one in self.received]

    def sent_back(self, *, response: bool = False) -> tuple[bytes, list[bool]]:
        """Return the body that was streamed back, and of each piece whether it says the end."""
        name = "response_body" if response else "request_body"
        pieces = [
            getattr(one, name).response.body_mutation.streamed_response
            for one in self.received
            if one.WhichOneof("response") == name
        ]
        assert all(len(one.body) <= 62_000 for one in pieces)
        return b"".join(one.body for one in pieces), [one.end_of_stream for one in pieces]

    @property
    def refused(self) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of the answer that the gateway gives at once."""
        found = self.received[-1].immediate_response
        assert self.status == 0
        return found.status.code, self.set_in(found.headers), found.body


class Room:
    """What decides, over `workers` at 10.0.0.N:8000."""

    def __init__(
        self,
        workers: int = 3,
        *,
        urls: Sequence[str] = (),
        limits: HttpLimits | None = None,
        alternatives: int = 0,
        tracer: Tracer | None = None,
        **settings: Any,
    ) -> None:
        # Nobody lets those go on that wait.
        given = RouterSettings(failure=FailureSettings(wait_for_worker_s=0.0))
        for name, value in settings.items():
            group, _, field = name.partition("__")
            inner = dataclasses.replace(getattr(given, group), **{field: value}) if field else value
            given = dataclasses.replace(given, **{group: inner})
        urls = urls or [f"http://10.0.0.{number}:8000" for number in range(workers)]
        named = tuple(f"w{number}={url}" for number, url in enumerate(urls))
        given = dataclasses.replace(given, kv_events=False, worker=named)
        server = RouterServer(given)
        self.context = server._context()
        self.context = msgspec.structs.replace(self.context, tracer=tracer)
        if alternatives:
            others = Alternatives(
                alternatives, server.scheduler, self.context.router.heartbeats.get, Random(7)
            )
            self.context = msgspec.structs.replace(self.context, alternatives=others)
        self.pool = UpstreamPool()
        for number, url in enumerate(urls):
            self.introduce(f"w{number}", url)
        check = check_of(given, self.pool, lambda _model, _hashes: None)
        reader = reader_of(given, "room", check, ())
        self.counts = PickCounts()
        self.addresses = Addresses(time.monotonic, self.located)
        self.unwatched = UnwatchedPicks(self.context)
        self.shared = PickShared(self.pool, self.addresses, self.counts, self.unwatched)
        self.splits = splits = Splits(split_options(given), self.pool)
        forward = partial(Pick, shared=self.shared)
        options = forward_options(given)
        gateway = Gateway(self.context, reader, forward, options, splits, Viewers(""))
        whole, unread = PathRoutes[PickExchange](), PathRoutes[PickExchange]()
        gateway.mount(whole)
        gateway.mount_unread(unread)
        self.errors: list[Exception] = []

        def decide(exchange: PickExchange) -> None:
            (unread if exchange.unread else whole)(exchange)

        self.door = PickDoor(
            decide,
            self.addresses,
            lambda error, _: self.errors.append(error),
            self.counts,
            limits=limits,
        )

    def located(self) -> list[Located]:
        beats = self.context.router.heartbeats
        return [Located(name, beat.url) for name, beat in beats.items()]

    def introduce(self, worker: str, url: str, **more: Any) -> None:
        workers, now, name = self.context.workers, self.context.clock(), WorkerId(worker)
        workers.membership.observe(name, 1, now + 1e6, ready=True)
        workers.describe(name, WorkerInfo())
        beat = WorkerHeartbeat(
            worker=name, bucket="b", epoch=1, last_seq=0, url=url, models=(), block_size=16, **more
        )
        for _ in self.context.router.receive(WorkerSeen(beat), now):
            pass

    def ask(self) -> Asking:
        stream = Asking()
        PickStream(stream, self.door)
        return stream

    def booked(self) -> dict[str, Any]:
        return dict(self.context.scheduler.sequences.bookings)

    async def close(self) -> None:
        self.unwatched.close()
        await self.pool.close()

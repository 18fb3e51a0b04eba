"""One request on its way through a meta-router."""

import time

import msgspec

from kvmesh.actors.meta_router import MetaRouter
from kvmesh.core.bucket_rules import BucketRequest
from kvmesh.core.buckets import Route
from kvmesh.errors import KvMeshError, NoWorkerError
from kvmesh.observe import get_logger
from kvmesh.transport.http.headers import Headers
from kvmesh.transport.http.plan import Outcome, Target, Wait
from kvmesh.transport.http.problem import Problem
from kvmesh.transport.http.upstream import UpstreamFailure

SERVER_ERROR = 500


class BucketPlan:
    """The forwarding plan of one request: each attempt goes to another replica of its bucket."""

    __slots__ = ("_meta", "_request", "_route", "_tried")

    def __init__(self, meta: MetaRouter, request: BucketRequest) -> None:
        self._meta = meta
        self._request = request
        self._route: Route | None = None
        self._tried: list[str] = []

    def next_target(self) -> Target | Problem | Wait | None:
        """Choose bucket and replica; a retry stays in the bucket."""
        request = self._request
        if self._route is not None:
            request = msgspec.structs.replace(request, bucket=self._route.bucket)
        try:
            route = self._meta.route(request, time.monotonic(), tried=self._tried)
        except NoWorkerError as error:
            return None if self._tried else Problem.from_error(error)
        except KvMeshError as error:
            return Problem.from_error(error)
        self._route = route
        self._tried.append(route.replica.name)
        return Target(route.replica.url)

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool:
        """Leave the replica out; another one is tried."""
        if self._route is not None and failure.kind != "status":
            self._meta.failed(self._route.replica.name, time.monotonic())
            get_logger().warning(
                "replica failed a request",
                replica=self._route.replica.name,
                stage=failure.stage,
                kind=failure.kind,
                error=failure.message,
            )
        return True

    def on_head(self, status: int, headers: Headers) -> Headers:
        """Trust the replica again. Its own headers already say who it is."""
        del headers
        if self._route is not None and status < SERVER_ERROR:
            self._meta.answered(self._route.replica.name)
        return ()

    def on_body(self, data: bytes) -> None:
        """Nothing to see: the replica watches the answer."""

    def on_finish(self, outcome: Outcome) -> None:
        """Leave out a replica that died in the middle of an answer."""
        if outcome.kind == "cut" and self._route is not None:
            self._meta.failed(self._route.replica.name, time.monotonic())

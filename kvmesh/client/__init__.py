"""A Python client of a front door, synchronous and asynchronous, over one protocol core."""

from kvmesh.client.aio import AsyncClient, AsyncStream
from kvmesh.client.protocol import (
    Answer,
    CustomRouter,
    Endpoint,
    Metrics,
    Request,
    Route,
)
from kvmesh.client.sync import Client, Stream

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncStream",
    "Client",
    "CustomRouter",
    "Endpoint",
    "Metrics",
    "Request",
    "Route",
    "Stream",
]

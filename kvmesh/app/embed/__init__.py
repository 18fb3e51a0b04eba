"""Parts of a mesh that run inside somebody else's Python program: a follower, a sidecar."""

from kvmesh.app.embed.follow import FollowOptions, follow
from kvmesh.app.embed.follower import EngineAddress, Follower
from kvmesh.app.embed.login import NatsLogin
from kvmesh.app.embed.register import RegisteredLlm, RegisterOptions, register_llm
from kvmesh.app.embed.reservation import BookingOptions, Reservation

__all__ = [
    "BookingOptions",
    "EngineAddress",
    "FollowOptions",
    "Follower",
    "NatsLogin",
    "RegisterOptions",
    "RegisteredLlm",
    "Reservation",
    "follow",
    "register_llm",
]

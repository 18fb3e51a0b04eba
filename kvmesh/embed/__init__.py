"""Parts of a mesh that run inside somebody else's Python program: a follower, a sidecar."""

from kvmesh.embed.follow import FollowOptions, follow
from kvmesh.embed.follower import EngineAddress, Follower
from kvmesh.embed.login import NatsLogin
from kvmesh.embed.register import RegisteredLlm, RegisterOptions, register_llm
from kvmesh.embed.reservation import BookingOptions, Reservation

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

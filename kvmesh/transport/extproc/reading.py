"""A gateway's messages out of their bytes."""

from typing import Final

from kvmesh._native import read_extproc
from kvmesh.errors import CodecError
from kvmesh.transport.extproc.messages import KINDS, Heard, Modes

_TYPES: Final = (*KINDS, Modes, CodecError)


def decode(data: bytes) -> Heard:
    """Return what a gateway's message says.

    Of a field that may stand once the last counts. Fields and metadata that a picker has no use for
    are skipped. Raises `CodecError` for what is no `ProcessingRequest`, or an empty one.
    """
    return read_extproc(_TYPES, data)

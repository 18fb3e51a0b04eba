"""Figures of a process itself, whatever its role."""

from typing import Final

from kvmesh.app.figures.figure import Figure, Table
from kvmesh.app.process.internal_errors import InternalErrors

# How a figure is read, then what it is.
# fmt: off
INTERNAL_ERRORS: Final = Table[InternalErrors](
    Figure("counter", "kvmesh_internal_errors", lambda one: one.counts(),
           "Faults in tasks and callbacks that live as long as the process: each is a bug.",
           ("task",)),
)

"""Figures of a process itself, whatever its role."""

from typing import Final

from kvmesh.app.process.build import Build
from kvmesh.app.process.internal_errors import InternalErrors
from kvmesh.app.views.figure import Figure, Table
from kvmesh.formats import KINDS

# How a figure is read, then what it is.
# fmt: off
INTERNAL_ERRORS: Final = Table[InternalErrors](
    Figure("counter", "kvmesh_internal_errors", lambda one: one.counts(),
           "Faults in tasks and callbacks that live as long as the process: each is a bug.",
           ("task",)),
)

BUILD: Final = Table[Build](
    Figure("gauge", "kvmesh_build_info", lambda one: {
               (one.version, one.python, *(str(one.formats.of(kind)) for kind in KINDS)): 1.0},
           "1; the labels say what the process runs: its version, Python's, and of each kind the "
           "formats that it reads, e.g. `1 to 2`.",
           ("version", "python", *KINDS)),
)

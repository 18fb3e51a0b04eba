"""Which block table an index uses: the compiled one where there is one."""

from typing import Final, cast

from kvmesh.compiled import NATIVE
from kvmesh.core.index.block_table import NewTable, Table
from kvmesh.core.index.table import BlockTable

TABLE: Final = cast("NewTable", NATIVE.Table) if NATIVE else BlockTable


def new_table() -> Table:
    """Return an empty table."""
    return TABLE()

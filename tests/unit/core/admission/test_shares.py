import msgspec
import pytest

from kvmesh.bounds import MAX_ORDINAL
from kvmesh.core.admission.shares import ShareRow, Shares


@pytest.mark.parametrize("number", [-1, MAX_ORDINAL + 1, 10**25, 1.5])
@pytest.mark.parametrize("field", range(5))
def test_counters_out_of_range_are_no_row(number: float, field: int) -> None:
    row: list[float] = [1, 1, 1, 1, 1]
    row[field] = number

    with pytest.raises(msgspec.ValidationError):
        msgspec.convert([1, 1, [row]], Shares)

    assert msgspec.convert([1, 2, [[1, 1, 1, 1, 1]]], Shares).rows == [ShareRow(1, 1, 1, 1, 1)]

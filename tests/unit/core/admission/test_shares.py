import msgspec
import pytest

from kvmesh.bounds import MAX_ORDINAL
from kvmesh.core.admission.shares import ShareRow, Shares, key_of


def test_a_tenant_has_one_key_everywhere_and_no_other_has_it() -> None:
    assert key_of("a") == key_of("a")
    assert len({key_of(name) for name in ("", "a", "b", "a ", "\udcff")}) == 5
    assert all(0 < key_of(str(number)) <= MAX_ORDINAL for number in range(100))


@pytest.mark.parametrize("number", [-1, MAX_ORDINAL + 1, 10**25, 1.5])
@pytest.mark.parametrize("field", range(5))
def test_counters_out_of_range_are_no_row(number: float, field: int) -> None:
    row: list[float] = [1, 1, 1, 1, 1]
    row[field] = number

    with pytest.raises(msgspec.ValidationError):
        msgspec.convert([1, 1, [row]], Shares)

    assert msgspec.convert([1, 2, [[1, 1, 1, 1, 1]]], Shares).rows == [ShareRow(1, 1, 1, 1, 1)]

"""The table of planted faults fits the tree."""

from pathlib import Path

import pytest

from benchmarks.planted.table import ROOT, Fault, read_faults


def test_each_fault_can_be_planted_and_has_tests() -> None:
    faults = read_faults()
    unfit = [
        str(one)
        for one in faults
        if (ROOT / one.file).read_text(encoding="utf-8").count(one.before) != 1
        or one.before == one.after
        or not all((ROOT / test).exists() for test in one.tests)
    ]

    assert not unfit
    assert len(faults) == len(set(faults)) >= 60


def test_a_fault_is_planted_once_and_a_stale_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("low = min(a, b)\n")
    fault = Fault("room", "a.py", "min(", "max(", ())

    fault.plant(tmp_path)

    assert (tmp_path / "a.py").read_text() == "low = max(a, b)\n"
    with pytest.raises(ValueError, match=r"a\.py: 'min\('.*0 times"):
        fault.plant(tmp_path)

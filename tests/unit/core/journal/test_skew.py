"""What is of a newer version, in words that name both."""

from kvmesh.core.journal.unread import Newer
from kvmesh.formats import FIRST, FormatRange, Formats


def test_both_versions_and_formats_are_named() -> None:
    newer = Newer("worker w1", "journal", 3, "0.3.0")

    assert newer.words(Formats(journal=FormatRange(1, 2)), "0.1.0") == (
        "worker w1 has journal format 3, of kvmesh 0.3.0: this is kvmesh 0.1.0, "
        "which reads 1 to 2; see docs/operate/upgrade.md"
    )
    assert "of a newer kvmesh:" in Newer("w", "manifest", 2).words(FIRST, "0.1.0")


def test_some_replica_may_read_it() -> None:
    newer = Newer("the snapshot store", "snapshot", 2)

    assert newer.is_read_by_any([FIRST, Formats(snapshot=FormatRange(2, 3))])
    assert not newer.is_read_by_any([FIRST, Formats(snapshot=FormatRange(3, 4))])

"""Requests looked for by tenant and by words, within bounds."""

import pytest

from kvmesh.core.insight.record_search import RecordSearch, search_for
from kvmesh.errors import RequestError
from tests.reference.decision_log import naive_log
from tests.unit.core.insight.test_decision_log import enter


def test_words_are_parts_of_the_id_the_tenant_or_the_worker() -> None:
    search = search_for("ABC garden", None)

    assert search.takes("x-abc-1", "garden", "w0")
    assert search.takes("x-1", "Gardeners", "w-abc")
    assert not search.takes("x-abc-1", "kitchen", "w0")
    assert RecordSearch().takes("any", "", "")


def test_a_tenant_is_meant_exactly_the_one_without_a_name_too() -> None:
    assert search_for("", "garden").takes("x", "garden", "w0")
    assert not search_for("", "garden").takes("x", "gardeners", "w0")
    assert search_for("", "").takes("x", "", "w0")
    assert not search_for("", "").takes("x", "garden", "w0")


@pytest.mark.parametrize("find", ["a" * 257, "a b c d e f g h i"])
def test_a_search_is_bounded(find: str) -> None:
    with pytest.raises(RequestError, match="at most 8 words and 256 characters"):
        search_for(find, None)


def test_the_newest_records_that_match_are_found_and_no_more() -> None:
    log = naive_log()
    for name, tenant in (("a-1", "ann"), ("b-1", "ben"), ("a-2", "ann"), ("a-3", "ann")):
        enter(log, name).tenant = tenant
    records = log.records.latest(10)

    assert [*search_for("a-", "ann").among(records, 2)] == [records[0], records[1]]
    assert [*search_for("1", None).among(records, 9)] == [records[2], records[3]]

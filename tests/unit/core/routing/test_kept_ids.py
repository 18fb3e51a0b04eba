import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.routing.kept_ids import KeptIdOptions, KeptIds

W1, W2 = WorkerId("w1"), WorkerId("w2")
FILE = "/v1/files/f-1"


def made(most: int = 1 << 16) -> KeptIds:
    ids = KeptIds(KeptIdOptions(ttl_s=100.0, max_ids=most))
    ids.made(FILE, "a", W1, 0.0)
    return ids


def test_an_id_is_its_makers_and_its_workers() -> None:
    ids = made()

    assert ids.find(FILE, 1.0) == W1
    assert [ids.is_owner(FILE, tenant, 1.0) for tenant in ("a", "b", "")] == [True, False, False]
    assert (ids.find("/v1/files/f-2", 1.0), ids.is_owner("/v1/files/f-2", "a", 1.0)) == (None, None)


def test_an_id_that_another_tenant_made_stays_its_own() -> None:
    ids, told = made(), KeptIds()
    told.made(FILE, "b", W2, 0.0)
    ids.made(FILE, "b", W2, 1.0)
    for key, value in told.updates.items():
        ids.updates.clear()
        ids.learn(key, value, 1.0)

    assert (ids.find(FILE, 2.0), ids.is_owner(FILE, "a", 2.0)) == (W1, True)


def test_an_id_unused_for_too_long_is_forgotten_and_one_in_use_is_told_anew() -> None:
    ids = made()
    news: list[int] = []
    ids.updates.clear()
    ids.on_news = lambda: news.append(1)
    for at_s in (40.0, 60.0, 90.0):
        ids.used(FILE, at_s)
    ids.used("/v1/files/f-2", 90.0)

    assert (len(news), len(ids.updates), ids.find(FILE, 180.0)) == (1, 1, W1)
    assert (ids.find(FILE, 191.0), len(ids), len(ids.updates)) == (None, 0, 0)


def test_ids_that_one_tenant_makes_push_out_no_others() -> None:
    ids = made(most=4)
    for number in range(1000):
        ids.made(f"/v1/files/x-{number}", "b", W2, float(number) / 100)

    assert (len(ids), len(ids.updates)) == (4, 4)
    assert ids.is_owner(FILE, "a", 10.0)
    assert ids.is_owner("/v1/files/x-999", "b", 10.0)
    assert ids.is_owner("/v1/files/x-1", "b", 10.0) is None


def test_who_keeps_an_id_is_learned_without_knowing_whose_it_is() -> None:
    ids = KeptIds()
    ids.found(FILE, W2, 0.0)
    known = (ids.find(FILE, 0.0), ids.is_owner(FILE, "", 0.0), ids.updates)
    ids.used(FILE, 1e5 * 4)
    ids.made(FILE, "a", W1, 4e5)
    ids.found(FILE, W2, 4e5)

    assert known == (W2, None, ids.updates) or known[:2] == (W2, None)
    assert (ids.find(FILE, 4e5), ids.is_owner(FILE, "a", 4e5)) == (W2, True)


def test_what_siblings_tell_is_learned_and_neither_ids_nor_tenants_can_be_read_in_it() -> None:
    ids, sibling = made(), KeptIds()
    for key, value in ids.updates.items():
        sibling.learn(key, value, 0.0)

    assert (sibling.find(FILE, 0.0), sibling.is_owner(FILE, "a", 0.0)) == (W1, True)
    assert sibling.updates == {}
    assert "f-1" not in str(ids.updates)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("", "0" * 16 + " w"),
        ("0" * 31 + "x", "0" * 16 + " w"),
        ("0" * 32, ""),
        ("0" * 32, "0" * 16 + " "),
        ("0" * 32, "0" * 15 + " w"),
        ("0" * 32, "0" * 16 + " " + "w" * 257),
    ],
)
def test_what_is_no_entry_is_passed_over(key: str, value: str) -> None:
    ids = KeptIds()
    ids.learn(key, value, 0.0)

    assert len(ids) == 0


def test_what_is_still_to_be_told_comes_later_than_what_is_heard() -> None:
    ids = made()
    ((key, value),) = ids.updates.items()
    ids.learn(key, value.replace("w1", "w2"), 0.0)

    assert ids.find(FILE, 0.0) == W1

from kvmesh.core.admission.tenant_line import MAX_LOOKED, MAX_OVERTAKEN, TenantLine


def line(*names: str) -> TenantLine:
    made = TenantLine(7)
    for arrival, name in enumerate(names):
        made.enter(name, 0.0, arrival)
    return made


def test_the_policy_counts_more_than_what_is_cached_and_that_more_than_arrival() -> None:
    one = line("a", "b", "c")
    one.enter("urgent", -1.0, 3)
    one.sort_anew("c", 5)

    assert one.next_ones(()) == ["urgent", "c", "a", "b"]
    assert (one.next_ones({"c", "urgent"}), one.order("c")) == (["a", "b"], (0.0, -5, 2))


def test_once_enough_went_before_it_the_oldest_is_next_or_nobody() -> None:
    one = line(*map(str, range(MAX_OVERTAKEN + 9)))
    for number in range(1, MAX_OVERTAKEN):
        one.served(str(number))
    assert len(one.next_ones({"0"})) == MAX_LOOKED

    one.served(str(MAX_OVERTAKEN))
    assert (one.next_ones(()), one.next_ones({"0"})) == (["0"], [])


def test_the_next_oldest_begins_anew() -> None:
    one = line(*map(str, range(MAX_OVERTAKEN + 9)))
    for number in range(1, MAX_OVERTAKEN + 1):
        one.served(str(number))
    one.leave("0")

    assert (one.overtaken, len(one)) == (0, 8)
    assert (one.oldest(), len(one.next_ones(()))) == (str(MAX_OVERTAKEN + 1), 8)

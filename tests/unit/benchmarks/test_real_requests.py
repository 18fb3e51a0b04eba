import json
from itertools import pairwise

import pytest

from benchmarks.proxy import real_requests as real
from benchmarks.proxy.bench_wishes import FORMS, WAYS, Form, Way


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_bodies_of_every_form_differ_and_are_json(form: Form) -> None:
    bodies = [form.body(number) for number in range(5)]

    assert all(json.loads(body)["messages"] for body in bodies)
    assert len(set(bodies)) == 5


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_no_two_requests_in_a_row_have_equal_heads(way: Way) -> None:
    heads = [way.head(number) for number in range(500)]

    assert all(one != other for one, other in pairwise(heads))


def test_a_request_has_its_own_head_and_the_length_of_its_body() -> None:
    assert real.request(real.keyed(7), b"{}").endswith(
        b"x-foo: bar-7\r\ncontent-length: 2\r\n\r\n{}"
    )

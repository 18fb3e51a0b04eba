import msgspec
import pytest

from kvmesh.core.engines.load import EngineFigures
from kvmesh.core.engines.sglang.load import decode_load_stat, decode_loads
from kvmesh.errors import CodecError

LIVE = bytes.fromhex("9ba84c6f6164537461740100cce0cd20000000cce0cd1000ccc8ce00016e3c")
"""From a running SGLang 0.5.23."""

PAGE = b"""{"version":"0.5.23","loads":[{"timestamp":1.5,"dp_rank":1,"num_running_reqs":3,
"num_waiting_reqs":2,"num_waiting_uncached_tokens":700,"num_used_tokens":512,
"max_total_num_tokens":4096,"token_usage":0.125,"total_prefill_uncached_tokens":25,
"total_prefill_busy_us":154883,"max_running_requests":64,"cache_hit_rate":0.4321,"memory":{"weight_gb":0.0},"queues":{"waiting":2}}]}"""


def test_a_message_of_the_load_stream_is_read_by_position() -> None:
    assert decode_load_stat(LIVE) == EngineFigures(
        running_requests=1,
        waiting_requests=0,
        used_tokens=224,
        total_tokens=8192,
        rank=0,
        waiting_tokens=0,
        prefilled_tokens=200,
        prefill_busy_us=93_756,
        total_slots=4096,
        computed_tokens=200 + 224,
    )


def test_shorter_messages_of_older_versions_and_longer_ones_are_read_too() -> None:
    older = decode_load_stat(msgspec.msgpack.encode(["LoadStat", 4, 2, 100, 1000, 1]))
    newer = decode_load_stat(msgspec.msgpack.encode([*msgspec.msgpack.decode(LIVE), 5, "more"]))

    assert older == EngineFigures(4, 2, 100, 1000, rank=1, computed_tokens=100)
    assert older.waiting_tokens is None
    assert newer.prefilled_tokens == 200


def test_a_page_of_loads_is_read_per_rank() -> None:
    assert decode_loads(PAGE) == {
        1: EngineFigures(
            *(3, 2, 512, 4096, 1, 700, 25, 154_883),
            total_slots=64,
            prefix_hit_rate=0.4321,
            computed_tokens=25 + 512,
        )
    }
    assert decode_loads(b'{"loads":[{}]}') == {0: EngineFigures(0, 0, 0, 0, computed_tokens=0)}


@pytest.mark.parametrize(
    ("reported", "computed"),
    [
        ({"decode_moments": [7.0, 70.0, 3.0]}, 7 + 40),
        ({"decode_moments": []}, 40),
        ({"decode_moments": None}, 40),
        ({"decode_moments": [1e25]}, None),
        ({"decode_moments": [-1.0]}, None),
        ({"total_prefill_uncached_tokens": 2**60}, None),
        ({"total_prefill_uncached_tokens": -50}, None),
    ],
)
def test_what_shows_progress_is_read_unless_it_is_no_count(
    reported: dict[str, object], computed: int | None
) -> None:
    page = msgspec.json.encode({"loads": [{"num_used_tokens": 40, **reported}]})

    [figures] = decode_loads(page).values()

    assert figures.computed_tokens == computed


@pytest.mark.parametrize(
    ("lora", "slots"),
    [({"slots_used": 2, "slots_total": 8}, 8), (None, 0), ([2, 8], 0), ({"slots_total": "x"}, 0)],
)
def test_the_slots_of_adapters_are_read_and_what_else_stands_there_is_skipped(
    lora: object, slots: int
) -> None:
    [figures] = decode_loads(msgspec.json.encode({"loads": [{"lora": lora}]})).values()

    assert figures.adapter_slots == slots


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\xa1x\x01\x02", LIVE[:-1]])
def test_bytes_that_are_no_load_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError, match="engine load of"):
        decode_load_stat(data)


@pytest.mark.parametrize("page", [b"", b"{}", b'{"loads":3}', b"<html>"])
def test_pages_that_list_no_loads_are_refused(page: bytes) -> None:
    with pytest.raises(CodecError, match="engine loads of"):
        decode_loads(page)

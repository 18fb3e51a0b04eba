import json
from array import array

from kvmesh.core.chat.continuation import Continuation, go_on
from kvmesh.core.chat.splice import Seen
from kvmesh.core.chat.stream_form import GREEDY
from kvmesh.core.chat.stream_marks import cut_behind
from kvmesh.core.engines.event_stream import new_event_stream
from kvmesh.core.engines.sse import Usage
from kvmesh.transport.http.forward.asked import is_unread
from kvmesh.transport.http.forward.resume import (
    MOST_CONTINUED,
    STREAM_ID,
    Going,
    Resumption,
    StreamKeep,
    begin_of,
)
from tests.unit.transport.http.forward.told_events import (
    BODY,
    DONE,
    ERROR,
    LEFT,
    REFUSED,
    RESET,
    Agreeing,
    Asked,
    chunk,
    stream_of,
    text_chunk,
)

FIRST = chunk("a", 4, prompt=[1, 2, 3])


def begun(keep: StreamKeep, body: bytes = BODY) -> Resumption:
    found = keep.begin(Asked(body).request, "chat")
    assert found is not None
    return found


def asked(keep: StreamKeep | None = None, body: bytes = BODY) -> Resumption:
    """Return a stream that was asked for ids, part of which its client has."""
    resumption = begun(keep or StreamKeep(1 << 20), body)
    resumption.sent(None, BODY, "http://w1", True)
    resumption.opened(FIRST, "http://w1")
    return resumption


def cut(resumption: Resumption, *events: bytes, plan: Agreeing | None = None) -> object:
    return resumption.cut(Asked(b""), stream_of(*events), RESET, plan or Agreeing(), poison=False)


def test_names_are_kept_of_a_first_event_with_a_long_prompts_ids() -> None:
    resumption = begun(StreamKeep(1 << 20))
    resumption.sent(None, BODY, "http://w1", True)
    resumption.opened(chunk("a", 4, prompt=list(range(5000))), "http://w1")

    going = cut(resumption, chunk("a", 4, prompt=[1, 2, 3]))

    assert isinstance(going, Going)
    passed = resumption.feed(text_chunk("b", 5))
    assert json.loads(passed.removeprefix(b"data: "))["id"] == json.loads(FIRST[6:])["id"]


def test_of_a_long_prompt_only_the_ids_are_kept_once_the_answer_has_begun() -> None:
    keep, whole = StreamKeep(1 << 20), BODY.replace(b"[]", b'[{"content":"%b"}]' % (b"x" * 9000))
    resumption, plan = asked(keep, whole), Agreeing()
    key, used = resumption.key, keep.used

    resumption.thin(stream_of(chunk("", prompt=[1, 2, 3])))
    assert resumption.thick, "nothing of the answer has passed"
    resumption.thin(stream_of(FIRST))
    assert (resumption.thick, keep.used) == (False, used - 9000 - len('{"content":""}'))
    going = cut(resumption, FIRST, plan=plan)

    assert isinstance(going, Going)
    assert json.loads(going.exchange.request.body) == json.loads(BODY)
    assert resumption.key == key
    _, sent, _ = resumption.sent(None, b"", "http://w2", True)
    assert (json.loads(sent)["prompt"], json.loads(sent)["max_tokens"]) == ([1, 2, 3, 4], 8)
    resumption.over()
    assert keep.used == 0


def test_a_long_prompt_is_kept_where_its_ids_are_not() -> None:
    whole = BODY.replace(b"[]", b'[{"content":"%b"}]' % (b"x" * 9000))
    resumption, plan = asked(body=whole), Agreeing()

    resumption.thin(stream_of(text_chunk("a")))
    going = cut(resumption, text_chunk("a"), plan=plan)

    assert isinstance(going, Going)
    assert going.exchange.request.body == whole
    assert not asked().thick


def test_what_all_keep_is_bounded_and_given_back() -> None:
    keep = StreamKeep(40_000)
    first, second = begun(keep), begun(keep)
    third = begun(keep)

    assert (first.word, second.word, third.word) == ("exact", "exact", "no")
    assert keep.given_up == 1
    assert StreamKeep(0).begin(Asked().request, "chat") is None
    for one in (first, second, third):
        one.over()
        one.over()
    assert keep.used == 0


def test_ids_are_asked_for_where_they_are_given() -> None:
    keep = StreamKeep(1 << 20)
    sampled = begun(keep, BODY.replace(b'"temperature":0', b'"temperature":1'))

    path, body, ids = sampled.sent(b"/p", b"", "http://w1", True)

    assert (path, body, ids) == (b"/p", sampled.body, True)
    assert sampled.word == "continued"
    assert not sampled.sent(None, b"", "http://w1", False)[2]
    assert sampled.word == "no"


def test_who_rejects_them_is_asked_no_more_and_who_gave_them_is_believed() -> None:
    keep = StreamKeep(1 << 20)
    one = begun(keep)
    one.sent(None, b"", "http://w1", True)

    assert not is_unread(503, "http://w1", one)
    assert is_unread(422, "http://w1", one)
    assert not one.sent(None, b"", "http://w1", True)[2]
    assert not is_unread(500, "http://w1", one)
    assert keep.ids.refuses == {"http://w1"}
    asked(keep)
    assert keep.ids.gives == set()
    keep.ids.refuses.clear()
    asked(keep)
    other = begun(keep)
    other.sent(None, b"", "http://w1", True)
    assert not is_unread(400, "http://w1", other)
    one.absolve("http://w2")


def test_who_rejects_the_request_itself_is_asked_again() -> None:
    keep = StreamKeep(1 << 20)
    one = begun(keep)
    one.sent(None, b"", "http://w1", True)
    assert is_unread(400, "http://w1", one)
    one.sent(None, b"", "http://w1", True)

    assert not is_unread(400, "http://w1", one)

    assert keep.ids.refuses == set()


def test_a_cut_stream_goes_on_behind_its_ids() -> None:
    keep, plan = StreamKeep(1 << 20), Agreeing()
    resumption = asked(keep)

    going = cut(resumption, FIRST, chunk("b", 5), plan=plan)

    assert isinstance(going, Going)
    assert going.passed == 2
    assert going.tokens == array("I", [1, 2, 3, 4, 5]).tobytes()
    assert going.exchange.request.body == BODY
    path, body, _ = resumption.sent(None, b"", "http://w2", False)
    assert (path, json.loads(body)["prompt"]) == (b"/v1/completions", [1, 2, 3, 4, 5])
    assert b'"content":"c"' in resumption.feed(text_chunk("c", 6))
    assert (keep.continued, keep.lost) == (1, 0)
    keep.ids.refuses.add("http://w2")
    assert b"return_token_ids" not in resumption.sent(None, b"", "http://w2", True)[1]
    usage = Usage(prompt_tokens=5, completion_tokens=1, cached_tokens=4)
    counted = resumption.counted(usage)
    assert counted is not None
    assert (counted.prompt_tokens, counted.completion_tokens) == (3, 3)
    assert resumption.counted(None) is None


def test_a_stream_goes_on_behind_two_losses_and_any_number_of_moves() -> None:
    keep = StreamKeep(1 << 20)
    resumption, plan = asked(keep, BODY.replace(b":9", b":99")), Agreeing()
    for _ in range(4):
        stream = stream_of(FIRST)
        assert resumption.cut(Asked(b""), stream, LEFT, plan, poison=True) is not None
        assert resumption.cut(Asked(b""), stream, REFUSED, plan, poison=False) is not None

    found = [cut(resumption, FIRST) is not None for _ in range(MOST_CONTINUED + 2)]

    assert found == [True] * MOST_CONTINUED + [False, False]
    assert (keep.continued, keep.lost) == (8 + MOST_CONTINUED, 1)


def test_what_nobody_takes_over_stays_as_it_is_and_may_be_lost_once() -> None:
    keep = StreamKeep(1 << 20)
    resumption, plan = asked(keep), Agreeing()
    plan.agrees = False
    stream = stream_of(FIRST)

    assert resumption.cut(Asked(b""), stream, LEFT, plan, poison=False) is None
    assert (keep.continued, keep.lost) == (0, 0)
    assert resumption.feed(b"as it is") == b"as it is"
    plan.agrees = True
    going = cut(resumption, FIRST)
    assert isinstance(going, Going)
    assert going.passed == 1
    resumption.sent(None, b"", "http://w2", True)
    poisoned = resumption.cut(Asked(b""), stream_of(), RESET, plan, poison=True)
    assert (poisoned, keep.lost) == (None, 1)
    assert cut(resumption, FIRST) is None
    assert keep.lost == 1


def test_what_lacks_its_end_alone_is_completed() -> None:
    resumption, plan = asked(), Agreeing()
    events = FIRST, chunk("", reason="stop")

    assert resumption.cut(Asked(b""), stream_of(*events), LEFT, plan, poison=False) is None
    assert cut(resumption, *events, plan=plan) == DONE
    assert plan.lost == [RESET]


def test_where_an_event_begins() -> None:
    assert begin_of(FIRST + ERROR + DONE, b'{"error":{"message":"broken","code":500}}') == len(
        FIRST
    )
    assert begin_of(ERROR, b'{"error"') == 0
    assert begin_of(FIRST, b"nothing") == 0


def test_a_stream_that_its_client_asks_for_again_is_kept_as_one_under_way() -> None:
    keep, first = StreamKeep(1 << 20), asked()
    first.marking = True
    stream = new_event_stream()
    first.watch(stream)
    stream.feed(FIRST + chunk("b", 5))
    seen = first.seen()
    assert seen is not None
    cut = cut_behind(seen.kept, 1)
    assert cut is not None
    going = go_on(BODY, "chat", GREEDY, Seen(cut.kept, seen.opening))
    assert isinstance(going, Continuation)

    resumed = keep.resume(BODY, "chat", GREEDY, seen.opening, going)

    assert resumed is not None
    assert (resumed.going, first.going, keep.resumed, keep.used > 0) == (going, None, 1, True)
    known = resumed.seen()
    assert known is not None
    assert (known.kept.token_ids, known.kept.marks) == (cut.kept.token_ids, cut.kept.marks)
    assert resumed.sent(None, b"", "http://w2", True)[0] == b"/v1/completions"
    full = StreamKeep(1000)
    assert full.resume(BODY, "chat", GREEDY, seen.opening, going) is None
    assert (full.resumed, full.given_up, full.used) == (0, 1, 0)


def test_nothing_is_known_of_a_stream_before_its_first_event() -> None:
    resumption = begun(StreamKeep(1 << 20))
    assert resumption.seen() is None
    resumption.watch(new_event_stream())
    assert resumption.seen() is None


def test_what_goes_on_has_not_the_name_by_which_its_stream_was_begun() -> None:
    exchange = Asked(b"")
    exchange.request.replace_headers(((STREAM_ID, b"mine"), (b"x-other", b"y")))

    assert asked().cut(exchange, stream_of(FIRST), RESET, Agreeing(), poison=False) is not None

    assert list(exchange.request.headers) == [(b"x-other", b"y")]

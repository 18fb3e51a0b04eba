from kvmesh.actors.kernel import Log, Message
from kvmesh.actors.messages import Tick
from kvmesh.actors.storage import Deleted, Failed, ReadKey
from kvmesh.actors.wishes import PendingEffects, ignore


def test_an_answer_goes_to_who_asked_and_only_once() -> None:
    wishes = PendingEffects()
    answers: list[Message] = []

    def then(answer: Message, now: float) -> list[Log]:
        answers.append(answer)
        return [Log("info", "answered", {"now": now})]

    first = wishes.make(lambda token: ReadKey("a", token), then)
    second = wishes.make(lambda token: ReadKey("b", token), ignore)
    assert isinstance(first, ReadKey)
    assert isinstance(second, ReadKey)
    failure = Failed(first.token, "late")

    assert list(wishes.answer(failure, 3.0)) == [Log("info", "answered", {"now": 3.0})]
    assert list(wishes.answer(failure, 4.0)) == []
    assert list(wishes.answer(Deleted(second.token), 4.0)) == []
    assert answers == [failure]


def test_a_message_that_answers_nothing_is_ignored() -> None:
    assert list(PendingEffects().answer(Tick(), 0.0)) == []

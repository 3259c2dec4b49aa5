"""A short mix in the suite; `make soak MIX=1 SECONDS=300` runs a long one."""

import pytest

from tests.chaos.asks import CHATS, VECTORS, Answer, read
from tests.chaos.mix import Kill, Mix, Wish, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_three_models_where_two_fit_and_engines_that_are_killed(tmp_path):
    mix = run(tmp_path, 8.0, 6, every_s=1.5)
    assert not mix.wrong, "\n".join(mix.wrong)
    assert mix.seen["right"], mix.seen
    assert mix.seen["killed"], mix.seen


# the judge itself is judged: what must not happen is seen


@pytest.fixture
def mix():
    found = Mix(server=None, models=("m",), seed=1)
    wish = Wish("m", CHATS[0], "@tokens=2", 9)
    found.known[wish] = Answer(status=200, text="tok0 tok1 ", done=True)
    return found


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (Answer(status=200, text="tok0 tok1 ", done=True), False),
        (Answer(status=200, text="tok0 ", done=True), True),
        (Answer(status=200, text="tok0 ", error="lost"), False),
        (Answer(status=200, text="tok1 ", error="lost"), True),
        (Answer(status=404, error="no such model"), True),
        (Answer(status=200, odd="neither end nor error"), True),
    ],
)
def test_a_wrong_answer_is_seen(mix, answer, wrong):
    mix.judge(next(iter(mix.known)), answer, 0.0, 1.0)
    assert bool(mix.wrong) is wrong


@pytest.mark.parametrize(("killed_s", "wrong"), [(5.0, False), (3.9, True), (6.1, True)])
def test_a_failure_without_a_kill_is_seen(mix, killed_s, wrong):
    mix.judge(next(iter(mix.known)), Answer(status=500, error="lost"), 4.0, 6.0)
    mix.kills.append(Kill("m", killed_s))
    mix.kills.append(Kill("another", 5.0))
    mix.explain()
    assert bool(mix.wrong) is wrong


class Reply:
    def __init__(self, status, **headers):
        self.status_code, self.headers = status, headers


@pytest.mark.parametrize(
    ("dialect", "status", "headers", "raw", "odd"),
    [
        (CHATS[0], 500, {}, '{"error": "lost"}', False),
        (CHATS[0], 500, {}, '{"error": {"message": "lost"}}', True),
        (CHATS[2], 500, {}, '{"error": "lost"}', True),
        (CHATS[0], 503, {}, '{"error": "busy"}', True),
        (CHATS[0], 503, {"retry-after": "2"}, '{"error": "busy"}', False),
        (CHATS[0], 200, {}, '{"message": {"content": "x"}, "done": false}\n', True),
        (CHATS[0], 200, {}, '{"message": {"content": "x"}, "done": true}\n', False),
        (CHATS[0], 200, {}, '{"message": {"content": "x"}, "do', True),
        (
            CHATS[2],
            200,
            {},
            'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n',
            True,
        ),
        (CHATS[3], 200, {}, 'data: {"type": "message_stop"}\n\n', False),
        (VECTORS[0], 502, {}, "Bad Gateway", True),
    ],
)
def test_an_answer_that_is_not_of_its_dialect_is_seen(dialect, status, headers, raw, odd):
    answer = read(dialect, Reply(status, **headers), raw, stream=dialect.event is not None)
    assert bool(answer.odd) is odd, answer

"""A few kills of a real llama-server in the suite; `make test-kills KILLS=300` are many."""

import pytest

from tests.chaos.asks import CHATS, Answer
from tests.chaos.kills import Kills, Question, run
from tests.e2e.conftest import engine_at, weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_answers_of_a_real_engine_that_is_killed_are_whole(tmp_path):
    env = {"VLLAMA_ENGINE_PATHS": f"llama-server={engine_at()}"}
    found = run(tmp_path, weights(), 4, 4, together=1, env=env)
    assert not found.wrong, "\n".join(found.wrong)
    assert found.seen["killed"] == 4, found.seen


# the judge itself is judged


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (Answer(status=200, text="one two", done=True), False),
        (Answer(status=200, text="one two", done=True, counts="others"), True),
        (Answer(status=200, text="one ", error="the connection was lost"), True),
        (Answer(status=200, text="one ", error="it response differs after"), False),
        (Answer(status=200, text="two ", error="it response differs after"), True),
        (Answer(status=200, text="one tw", odd="neither end nor error"), True),
    ],
)
def test_a_wrong_answer_is_seen(answer, wrong):
    kills = Kills(None, "m", 1)
    right = Answer(status=200, text="one two", done=True)
    kills.judge(Question(CHATS[0], "?", "greedy"), answer, right)
    assert bool(kills.wrong) is wrong

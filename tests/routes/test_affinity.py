"""Which requests begin alike."""

from vllama.chat.request import Message
from vllama.routes.affinity import of_messages, of_text

SYSTEM = {"role": "system", "content": "be brief"}
FIRST = {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "hi"}
SECOND = {"role": "user", "content": "and then?"}


def test_all_turns_of_a_conversation_begin_alike():
    first = of_messages([SYSTEM, FIRST])()
    assert of_messages([SYSTEM, FIRST, ANSWER, SECOND])() == first
    assert of_messages((SYSTEM, FIRST))() == first


def test_other_conversations_begin_otherwise():
    first = of_messages([SYSTEM, FIRST])()
    assert of_messages([SYSTEM, SECOND])() != first
    assert of_messages([FIRST])() != first


def test_parsed_messages_count_as_their_json():
    parsed = [Message(role="user", content="hello"), Message(role="assistant", content="hi")]
    assert of_messages(parsed)() == of_messages(parsed[:1])()
    assert of_messages(parsed)() == of_messages([FIRST])()


def test_odd_messages_do_no_harm():
    for odd in (None, [], ["x"], [{"role": "user", "content": [{"type": "text"}]}], "text", 3):
        of_messages(odd)()


def test_prompts_begin_alike_up_to_a_length():
    assert of_text("s", "a" * 5000)() == of_text("s", "a" * 5000 + "b")()
    assert of_text("s", "ab")() != of_text("s", "ac")()

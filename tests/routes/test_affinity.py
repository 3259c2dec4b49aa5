"""Which requests begin alike."""

from vllama.chat.request import Message
from vllama.routes.inference.demand import hash_messages, hash_text

SYSTEM = {"role": "system", "content": "be brief"}
FIRST = {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "hi"}
SECOND = {"role": "user", "content": "and then?"}


def test_all_turns_of_a_conversation_begin_alike():
    first = hash_messages([SYSTEM, FIRST])()
    assert hash_messages([SYSTEM, FIRST, ANSWER, SECOND])() == first
    assert hash_messages((SYSTEM, FIRST))() == first


def test_other_conversations_begin_otherwise():
    first = hash_messages([SYSTEM, FIRST])()
    assert hash_messages([SYSTEM, SECOND])() != first
    assert hash_messages([FIRST])() != first


def test_parsed_messages_count_as_their_json():
    parsed = [Message(role="user", content="hello"), Message(role="assistant", content="hi")]
    assert hash_messages(parsed)() == hash_messages(parsed[:1])()
    assert hash_messages(parsed)() == hash_messages([FIRST])()


def test_odd_messages_do_no_harm():
    for odd in (None, [], ["x"], [{"role": "user", "content": [{"type": "text"}]}], "text", 3):
        hash_messages(odd)()


def test_prompts_begin_alike_up_to_a_length():
    assert hash_text("s", "a" * 5000)() == hash_text("s", "a" * 5000 + "b")()
    assert hash_text("s", "ab")() != hash_text("s", "ac")()

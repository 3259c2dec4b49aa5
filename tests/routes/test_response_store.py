"""The store of responses: who finds what, what gives way, what outlives the server."""

import asyncio
import stat

import msgspec
import pytest

from vllama.routes.response_store import (
    PreviousNotFound,
    Record,
    ResponseNotFound,
    ResponseStore,
)


def name(number):
    return f"resp_{number:024x}"


def record(number, previous=None, owner="", text="x"):
    return Record(
        id=name(number),
        owner=owner,
        previous=None if previous is None else name(previous),
        input=[{"id": f"msg_in{number}", "type": "message", "role": "user", "content": text}],
        response={"id": name(number), "output": [{"id": f"msg_{number}", "type": "message"}]},
    )


def found(store, number, owner=""):
    try:
        return asyncio.run(store.find(name(number), owner)) is not None
    except ResponseNotFound:
        return False


def chain(store, number, owner=""):
    return [one.id for one in asyncio.run(store.chain(name(number), owner))]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "responses"


def test_a_conversation_is_a_chain(folder):
    store = ResponseStore(folder)
    for number, previous in ((1, None), (2, 1), (3, 2), (4, 1)):
        store.keep(record(number, previous))
    assert chain(store, 3) == [name(1), name(2), name(3)]
    assert chain(store, 4) == [name(1), name(4)]
    assert not folder.exists()


def test_others_find_nothing(folder):
    store = ResponseStore(folder)
    store.keep(record(1, owner="a"))
    assert found(store, 1, "a") and not found(store, 1, "b") and not found(store, 1, "")
    with pytest.raises(ResponseNotFound):
        asyncio.run(store.remove(name(1), "b"))
    with pytest.raises(PreviousNotFound, match=f"Previous response with id '{name(1)}' not found"):
        chain(store, 1, "b")
    assert found(store, 1, "a")


def test_the_least_recently_used_gives_way(folder):
    size = len(msgspec.json.encode(record(1)))
    store = ResponseStore(folder, max_bytes=3 * size)
    for number in (1, 2, 3):
        store.keep(record(number))
    assert found(store, 1)
    store.keep(record(4))
    assert [number for number in (1, 2, 3, 4) if found(store, number)] == [1, 3, 4]


def test_the_beginning_of_a_conversation_stays_longest(folder):
    size = len(msgspec.json.encode(record(2, 1)))
    store = ResponseStore(folder, max_bytes=3 * size)
    store.keep(record(1))
    store.keep(record(2, 1), after=[record(1)])
    store.keep(record(3, 2), after=[record(1), record(2, 1)])
    store.keep(record(4))
    assert chain(store, 2) == [name(1), name(2)]
    assert not found(store, 3)


def test_one_that_is_larger_than_all_is_not_kept(folder):
    store = ResponseStore(folder, max_bytes=1000)
    store.keep(record(1))
    store.keep(record(2, text="x" * 2000))
    assert not found(store, 2)
    store.keep(record(3))
    assert found(store, 3)


def test_what_is_saved_outlives_the_server_with_its_conversation(folder):
    store = ResponseStore(folder)
    store.keep(record(1))
    store.keep(record(2, 1), after=[record(1)])
    store.keep(record(3))
    asyncio.run(store.save(name(2), ""))
    later = ResponseStore(folder)
    assert chain(later, 2) == [name(1), name(2)]
    assert not found(later, 3)
    assert not found(later, 2, "somebody else")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    assert modes == {0o700, 0o600}


def test_what_is_removed_is_gone_from_the_disk_too(folder):
    store = ResponseStore(folder)
    store.keep(record(1))
    asyncio.run(store.save(name(1), ""))
    asyncio.run(store.remove(name(1), ""))
    assert not found(store, 1) and not found(ResponseStore(folder), 1)
    assert list(folder.iterdir()) == []


def test_a_full_disk_is_no_error_of_the_request(tmp_path, caplog):
    folder = tmp_path / "file"
    folder.write_text("no folder")
    store = ResponseStore(folder)
    store.keep(record(1))
    asyncio.run(store.save(name(1), ""))
    assert "cannot keep response" in caplog.text
    assert found(store, 1)


@pytest.mark.parametrize(
    "identity", ["", "x", "resp_", "../../etc/passwd", "resp_" + "g" * 24, name(1) + "\n"]
)
def test_what_is_no_id_is_looked_for_nowhere(folder, identity):
    folder.mkdir()
    (folder.parent / "passwd.json").write_text("{}")
    with pytest.raises(ResponseNotFound):
        asyncio.run(ResponseStore(folder).find(identity, ""))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"id":5}'])
def test_a_damaged_file_is_no_response(folder, content, caplog):
    folder.mkdir()
    (folder / f"{name(1)}.json").write_bytes(content)
    assert not found(ResponseStore(folder), 1)
    assert "damaged" in caplog.text

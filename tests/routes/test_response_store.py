"""The store of responses: who finds what, what gives way, what outlives the server."""

import asyncio
import stat

import msgspec
import pytest

from vllama.base.errors import BadRequest, NotFound
from vllama.routes import response_store
from vllama.routes.response_store import (
    DiskLimits,
    Exchange,
    ResponseStore,
)


def name(number):
    return f"resp_{number:024x}"


def record(number, previous=None, owner="", text="x"):
    return Exchange(
        id=name(number),
        owner=owner,
        previous=None if previous is None else name(previous),
        input=[{"id": f"msg_in{number}", "type": "message", "role": "user", "content": text}],
        response={"id": name(number), "output": [{"id": f"msg_{number}", "type": "message"}]},
    )


def found(store, number, owner=""):
    try:
        return asyncio.run(store.find(name(number), owner)) is not None
    except NotFound:
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
    with pytest.raises(NotFound):
        asyncio.run(store.remove(name(1), "b"))
    with pytest.raises(NotFound, match=f"Previous response with id '{name(1)}' not found"):
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
    asyncio.run(store.save(name(2), "", [record(1)]))
    later = ResponseStore(folder)
    assert chain(later, 2) == [name(1), name(2)]
    assert not found(later, 3)
    assert not found(later, 2, "somebody else")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    assert modes == {0o700, 0o600}


def on_disk(folder, owner="", numbers=range(1, 20)):
    return [number for number in numbers if found(ResponseStore(folder), number, owner)]


def save(store, number, owner="", text="x" * 1000, previous=None, after=()):
    one = record(number, previous, owner=owner, text=text)
    store.keep(one, after)
    asyncio.run(store.save(one.id, owner, after))
    return one


def test_the_files_of_a_key_and_of_all_have_limits_and_the_oldest_go(folder):
    size = len(msgspec.json.encode(record(1, owner="a", text="x" * 1000)))
    limits = DiskLimits(bytes=int(5.5 * size), bytes_of_owner=int(3.5 * size))
    store = ResponseStore(folder, on_disk=limits)
    for number in range(1, 10):
        save(store, number, "a")
        assert sum(path.stat().st_size for path in folder.iterdir()) <= limits.bytes_of_owner
    assert on_disk(folder, "a") == [7, 8, 9]
    for number in range(11, 15):
        save(store, number, "b")
    assert on_disk(folder, "b") == [12, 13, 14]
    assert on_disk(folder, "a") == [8, 9]  # five in all


def test_the_number_of_files_has_a_limit(folder):
    store = ResponseStore(folder, on_disk=DiskLimits(files=5))
    for number in range(1, 22):
        save(store, number, text="x")
    assert on_disk(folder, numbers=range(1, 22)) == [17, 18, 19, 20, 21]


def test_a_conversation_that_goes_on_keeps_its_beginning(folder):
    size = len(msgspec.json.encode(record(1, text="x" * 1000)))
    store = ResponseStore(folder, on_disk=DiskLimits(bytes_of_owner=int(4.5 * size)))
    first = save(store, 1)
    written = {path: path.stat().st_ino for path in folder.iterdir()}
    for number in range(2, 7):  # others come in between
        save(store, number)
        save(store, number + 10, text="", previous=1, after=[first])
    assert {path: path.stat().st_ino for path in written} == written  # it was not written again
    assert chain(ResponseStore(folder), 16) == [name(1), name(16)]


def test_a_key_that_keeps_much_displaces_its_own(folder):
    size = len(msgspec.json.encode(record(1, owner="a")))
    store = ResponseStore(folder, max_bytes=5 * size)
    store.keep(record(1, owner="a"))
    for number in range(2, 10):
        store.keep(record(number, owner="b"))
    assert found(store, 1, "a")
    assert [number for number in range(2, 10) if found(store, number, "b")] == [6, 7, 8, 9]


def test_a_conversation_has_a_limit(folder, monkeypatch):
    monkeypatch.setattr(response_store, "MAX_CONVERSATION_BYTES", 2500)
    store = ResponseStore(folder)
    first = record(1, text="x" * 1000)
    second = record(2, 1, text="x" * 1000)
    store.keep(first)
    store.keep(second, [first])
    assert chain(store, 2) == [name(1), name(2)]
    store.keep(record(3, 2, text="x" * 1000), [first, second])
    with pytest.raises(BadRequest, match="the conversation is larger than 2500 bytes"):
        chain(store, 3)


def test_files_of_an_earlier_version_are_found_and_removed(folder):
    folder.mkdir()
    old = folder / f"{name(1)}.json"
    old.write_bytes(msgspec.json.encode(record(1, owner="a")))
    store = ResponseStore(folder)
    assert found(store, 1, "a") and not found(ResponseStore(folder), 1, "b")
    asyncio.run(store.remove(name(1), "a"))
    assert not old.exists()


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
    assert "cannot store response" in caplog.text
    assert found(store, 1)


@pytest.mark.parametrize(
    "identity", ["", "x", "resp_", "../../etc/passwd", "resp_" + "g" * 24, name(1) + "\n"]
)
def test_what_is_no_id_is_looked_for_nowhere(folder, identity):
    folder.mkdir()
    (folder.parent / "passwd.json").write_text("{}")
    with pytest.raises(NotFound):
        asyncio.run(ResponseStore(folder).find(identity, ""))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"id":5}'])
def test_a_damaged_file_is_no_response(folder, content, caplog):
    folder.mkdir()
    (folder / f"{name(1)}.json").write_bytes(content)
    assert not found(ResponseStore(folder), 1)
    assert "damaged" in caplog.text

"""The conversation, on a pseudo-terminal."""

from __future__ import annotations

import base64
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.stub import Body, Reply, StubServer, answer
from tests.cli.terminal import Terminal

# real processes, one after another: not for every save
pytestmark = pytest.mark.slow

Open = Callable[..., Terminal]
CHAT = "POST /api/chat"
PROMPT = ">>> "


def ready(stub: StubServer, terminal: Open, *args: str, **env: str) -> Terminal:
    stub.on("POST /api/generate", {"done": True, "done_reason": "load"})
    screen = terminal("run", "m", *args, **env)
    screen.expect(PROMPT)
    return screen


def ask(screen: Terminal, text: str, expected: str) -> None:
    screen.type(text + "\r")
    screen.expect(expected)
    screen.expect(PROMPT)


def test_a_conversation(stub: StubServer, terminal: Open, env: dict[str, str]) -> None:
    stub.on(CHAT, *answer("First", " answer.", chat=True))
    screen = ready(stub, terminal)
    ask(screen, "one", "First answer.")
    stub.on(CHAT, *answer("Second answer.", thinking="hm", chat=True))
    ask(screen, "two", "Second answer.")
    assert "Thinking..." in screen.screen
    screen.type("\x04")
    assert screen.finish() == 0
    assert [message["content"] for message in stub.bodies(CHAT)[1]["messages"]] == [
        "one",
        "First answer.",
        "two",
    ]
    history = Path(env["HOME"]) / ".local/share/vllama/history"
    assert "+two" in history.read_text()


def test_settings(stub: StubServer, terminal: Open) -> None:
    stub.on(CHAT, *answer("ok", chat=True, eval_count=3, eval_duration=1_000_000_000))
    screen = ready(stub, terminal)
    ask(screen, "/set parameter temperature 0.2", "Set parameter 'temperature' to '0.2'")
    ask(screen, "/set parameter temperature hot", "needs a number, not 'hot'")
    ask(screen, '/set system "Be brief, don\'t chat"', "Set system message.")
    ask(screen, "/set format json", "Set format to 'json' mode.")
    ask(screen, "/set verbose", "Set 'verbose' mode.")
    ask(screen, "/set nothink", "Set 'nothink' mode.")
    ask(screen, "/set", "/set parameter <name> <value>")
    ask(screen, "/set nonsense", "Unknown command '/set nonsense'. Type /? for help")
    ask(screen, "/set parameter", "/set parameter num_ctx <int>")
    ask(screen, "/set parameter seed", "/set parameter num_ctx <int>")
    ask(screen, "/set format xml", "Invalid or missing format.")
    ask(screen, "/set system", "/set parameter <name> <value>")
    ask(screen, "hello", "3.00 tokens/s")
    body = stub.bodies(CHAT)[0]
    assert body["options"] == {"temperature": 0.2}
    assert body["messages"][0] == {"role": "system", "content": "Be brief, don't chat"}
    assert (body["format"], body["think"]) == ("json", False)
    ask(screen, "/show parameters", "temperature")
    ask(screen, "/show system", "Be brief")
    ask(screen, "/?", "Available commands:")
    ask(screen, "/? shortcuts", "Ctrl + g")
    ask(screen, "/? set", "/set history, nohistory")
    ask(screen, "/nonsense", "Unknown command '/nonsense'. Type /? for help")
    ask(screen, "/lod x", "Unknown command '/lod'. Did you mean '/load'? Type /? for help")
    ask(screen, "/set verbos", "Did you mean '/set verbose'?")
    ask(screen, "/set parameter tempratur 1", "did you mean temperature?")
    ask(screen, "/clear", "Cleared session context")
    ask(screen, "again", "3.00 tokens/s")
    assert len(stub.bodies(CHAT)[1]["messages"]) == 2
    screen.type("/bye\r")
    assert screen.finish() == 0


def test_a_saved_conversation_goes_on(stub: StubServer, terminal: Open) -> None:
    earlier = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": "I am Bob."},
    ]
    stub.on("POST /api/show", {"capabilities": ["completion"], "messages": earlier})
    stub.on(CHAT, *answer("Still Bob.", chat=True))
    stub.on("POST /api/create", {"status": "success"})
    stub.on("POST /api/generate", {"done": True, "done_reason": "load"})
    screen = terminal("run", "m")
    screen.expect(">>> Who are you?\nI am Bob.\n\n>>> ")
    assert "Be brief." not in screen.screen
    ask(screen, "And now?", "Still Bob.")
    new = [{"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Still Bob."}]
    assert stub.bodies(CHAT)[0]["messages"] == new[:1]  # the server adds the model's own
    ask(screen, "/set system Sing", "Set system message.")
    ask(screen, "/show info", "Capabilities")
    assert stub.bodies("POST /api/show")[-1]["system"] == "Sing"
    ask(screen, "/save again", "Created new model 'again'")
    assert stub.bodies("POST /api/create")[0]["messages"] == earlier + new


def test_what_a_model_is(stub: StubServer, terminal: Open) -> None:
    screen = ready(stub, terminal)
    stub.on(
        "POST /api/show",
        {
            "capabilities": ["completion", "tools"],
            "details": {"family": "llama", "parameter_size": "134.52M"},
            "license": "Apache-2.0",
            "template": "{{ x }}",
        },
    )
    ask(screen, "/show info", "134.52M")
    ask(screen, "/show license", "Apache-2.0")
    ask(screen, "/show template", "{{ x }}")
    ask(screen, "/show modelfile", "No modelfile was specified for this model.")
    ask(screen, "/show system", "No system message was specified for this model.")
    ask(screen, "/show parameters", "No additional parameters were specified for this model.")
    ask(screen, "/show nonsense", "Unknown command '/show nonsense'. Type /? for help")
    ask(screen, "/show", "/show info")
    stub.on("GET /api/tags", {"models": [{"name": "other:latest", "digest": "ab" * 32}]})
    ask(screen, "/list", "MODIFIED")
    assert "other:latest    abababababab" in screen.screen
    screen.type("/exit\r")
    assert screen.finish() == 0


def test_several_lines(stub: StubServer, terminal: Open) -> None:
    stub.on(CHAT, *answer("ok", chat=True))
    screen = ready(stub, terminal)
    screen.type('"""first\r')
    screen.expect("...")
    screen.type("second\r")
    screen.expect("...")
    ask(screen, 'third"""', "ok")
    assert stub.bodies(CHAT)[0]["messages"][0]["content"] == "first\nsecond\nthird"
    ask(screen, '"""one line"""', "ok")
    assert stub.bodies(CHAT)[1]["messages"][2]["content"] == "one line"
    screen.type('/set system """a\r')
    screen.expect("...")
    ask(screen, 'b"""', "Set system message.")
    ask(screen, "/show system", "a\nb")


def test_a_block_comes_back_whole(stub: StubServer, terminal: Open, env: dict[str, str]) -> None:
    stub.on(CHAT, *answer("ok", chat=True))
    screen = ready(stub, terminal)
    screen.type('"""first\r')
    screen.expect("...")
    ask(screen, 'second"""', "ok")
    ask(screen, "\x1b[A", "ok")
    asked = [body["messages"][-1]["content"] for body in stub.bodies(CHAT)]
    assert asked == ["first\nsecond"] * 2
    screen.type("/bye\r")
    assert screen.finish() == 0
    again = ready(stub, terminal)
    ask(again, "\x1b[A\x1b[A", "ok")  # over /bye, from the file
    assert stub.bodies(CHAT)[2]["messages"][-1]["content"] == "first\nsecond"


EDITOR = "import sys, pathlib; f = pathlib.Path(sys.argv[1]); f.write_text(f.read_text() + {!r})"


def test_writing_in_an_editor(stub: StubServer, terminal: Open, tmp_path: Path) -> None:
    stub.on(CHAT, *answer("ok", chat=True))
    script = tmp_path / "my editor.py"
    script.write_text(EDITOR.format(" more\nlines\n"))
    screen = ready(stub, terminal, EDITOR="/no/such", VISUAL=f"{sys.executable} '{script}'")
    screen.type("so far")
    screen.expect("so far")
    screen.type("\x07")
    screen.expect("lines")
    ask(screen, "", "ok")
    assert stub.bodies(CHAT)[0]["messages"] == [{"role": "user", "content": "so far more\nlines"}]


def test_an_editor_that_is_not_there(stub: StubServer, terminal: Open) -> None:
    stub.on(CHAT, *answer("ok", chat=True))
    screen = ready(stub, terminal, OLLAMA_EDITOR="/no/such")
    screen.type("kept")
    screen.expect("kept")
    screen.type("\x07")
    screen.expect("cannot start the editor '/no/such'")
    screen.expect("kept")
    ask(screen, "", "ok")
    assert stub.bodies(CHAT)[0]["messages"][0]["content"] == "kept"


def test_images(stub: StubServer, terminal: Open, tmp_path: Path) -> None:
    stub.on(CHAT, *answer("ok", chat=True))
    picture = tmp_path / "a cat.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n...")
    stub.on("POST /api/show", {"capabilities": ["completion", "vision"]})
    screen = ready(stub, terminal)
    ask(screen, "/?", ".webp images")
    ask(screen, f"what is '{picture}'?", "Added image")
    message = stub.bodies(CHAT)[0]["messages"][0]
    assert message["content"] == "what is ?"
    assert base64.b64decode(message["images"][0]) == picture.read_bytes()
    (tmp_path / "b.png").write_text("text")
    ask(screen, f"{tmp_path}/b.png", "WebP")
    stub.on("POST /api/show", {"capabilities": ["completion"]})
    ask(screen, "/load blind", "Loading model 'blind'")
    ask(screen, f"what is '{picture}'?", "ok")
    assert stub.bodies(CHAT)[1]["messages"] == [
        {"role": "user", "content": f"what is '{picture}'?"}
    ]


def test_what_a_model_cannot_do_is_said(stub: StubServer, terminal: Open, tmp_path: Path) -> None:
    stub.on(CHAT, *answer("ok", chat=True))
    stub.on("POST /api/show", {"capabilities": ["completion"]})
    screen = ready(stub, terminal)
    for words in ("think", "think high"):
        ask(screen, f"/set {words}", "'m' does not support thinking; nothing was changed")
    ask(screen, "/set nothink", "Set 'nothink' mode.")
    picture = tmp_path / "a.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n")
    screen.type(f"what is {picture}?\r")
    screen.expect("does not accept images;")
    screen.expect("ok")
    screen.expect(PROMPT)
    stub.on("POST /api/show", {"capabilities": ["completion", "thinking"]})
    ask(screen, "/load other", "Loading model 'other'")
    ask(screen, "/set think", "Set 'think' mode.")
    ask(screen, "go", "ok")
    assert [body.get("think") for body in stub.bodies(CHAT)] == [False, True]


def test_a_cancelled_message_may_still_be_read(stub: StubServer, terminal: Open) -> None:
    left = threading.Event()

    def silent(body: Body, reply: Reply) -> None:
        reply.begin()
        reply.wait_for_leaving()
        left.set()

    stub.routes[CHAT] = silent
    screen = ready(stub, terminal)
    screen.type("a long message\r")
    while not stub.bodies(CHAT):
        time.sleep(0.01)
    screen.type("\x03")
    assert left.wait(60)
    screen.expect(PROMPT)
    go_on = threading.Event()

    def late(body: Body, reply: Reply) -> None:
        assert go_on.wait(60)
        for line in answer("fine", chat=True):
            reply.line(line)

    stub.routes[CHAT] = late
    screen.type("and now?\r")
    screen.expect("the engine may still be processing")
    go_on.set()
    screen.expect("fine")
    screen.expect(PROMPT)


def test_ctrl_c_stops_an_answer_only(stub: StubServer, terminal: Open) -> None:
    left = threading.Event()

    def endless(body: Body, reply: Reply) -> None:
        reply.line({"message": {"role": "assistant", "content": "so far \n"}, "done": False})
        reply.wait_for_leaving()
        left.set()

    stub.routes[CHAT] = endless
    screen = ready(stub, terminal)
    screen.type("go on\r")
    screen.expect("so far")
    screen.type("\x03")
    assert left.wait(60)
    screen.expect(PROMPT)
    stub.on(CHAT, *answer("fine", chat=True))
    ask(screen, "and now?", "fine")
    assert [m["role"] for m in stub.bodies(CHAT)[1]["messages"]] == ["user", "assistant", "user"]
    screen.type("half a line")
    screen.expect("half a line")
    screen.type("\x03")
    screen.expect(PROMPT)
    assert "Use Ctrl" not in screen.screen
    screen.type("\x03")
    screen.expect("Use Ctrl + d or /bye to exit.")
    screen.expect(PROMPT)
    screen.type("\x04")
    assert screen.finish() == 0


def test_a_failed_answer_does_not_end_the_conversation(stub: StubServer, terminal: Open) -> None:
    stub.on(CHAT, {"message": {"content": "half"}}, {"error": "the engine died"})
    screen = ready(stub, terminal)
    ask(screen, "lost", "the engine died")
    stub.fail(CHAT, 503, "server busy")
    ask(screen, "lost too", "server busy")
    stub.on(CHAT, *answer("fine", chat=True))
    ask(screen, "kept", "fine")
    assert [m["content"] for m in stub.bodies(CHAT)[2]["messages"]] == ["kept"]


def test_another_model(stub: StubServer, terminal: Open) -> None:
    stub.on(CHAT, *answer("ok", chat=True))
    screen = ready(stub, terminal)
    ask(screen, "one", "ok")
    screen.type("/load other\r")
    screen.expect(PROMPT)
    ask(screen, "two", "ok")
    body = stub.bodies(CHAT)[1]
    assert (body["model"], len(body["messages"])) == ("other", 1)
    stub.fail("POST /api/show", 404, "model 'nope' not found")
    ask(screen, "/load nope", "Couldn't find model 'nope'")
    stub.on("POST /api/show", {"capabilities": ["completion"]})
    ask(screen, "/load", "/load <model>")
    stub.fail("POST /api/generate", 500, "cannot load 'third': it is damaged")
    ask(screen, "/load third", "it is damaged")
    ask(screen, "three", "ok")
    assert stub.bodies(CHAT)[2]["model"] == "other"


def test_lines_are_broken_between_words(stub: StubServer, terminal: Open) -> None:
    stub.on(CHAT, *answer(*(f"word{n:02} " for n in range(30)), chat=True))
    screen = ready(stub, terminal)
    ask(screen, "go", "word29")
    shown = screen.screen
    assert "word10\nword11" in shown
    ask(screen, "/set nowordwrap", "Set 'nowordwrap' mode.")
    ask(screen, "go", "word10 word11 word12")


def test_no_history_is_kept_if_not_wanted(
    stub: StubServer, terminal: Open, env: dict[str, str]
) -> None:
    stub.on(CHAT, *answer("ok", chat=True))
    screen = ready(stub, terminal, OLLAMA_NOHISTORY="1")
    ask(screen, "secret", "ok")
    assert not (Path(env["HOME"]) / ".local/share/vllama/history").exists()


def test_a_model_that_does_not_load(stub: StubServer, terminal: Open) -> None:
    stub.fail("POST /api/generate", 500, "cannot load 'm': not enough memory")
    screen = terminal("run", "m")
    screen.expect("Error: cannot load 'm': not enough memory")
    assert screen.finish() == 1


def test_words_stay_whole_when_the_terminal_is_resized(stub: StubServer, terminal: Open) -> None:
    resized = threading.Event()

    def handler(body: Body, reply: Reply) -> None:
        words = list(answer(*(f"{number:03} " for number in range(60))))
        for line in words[:30]:
            reply.line(line)
        assert resized.wait(60)
        for line in words[30:]:
            reply.line(line)

    stub.routes["POST /api/generate"] = handler
    shown = terminal("run", "m", "hello")
    shown.expect("028")
    shown.resize(30)
    resized.set()
    assert shown.finish() == 0
    lines = [line.strip() for line in shown.screen.splitlines() if "0" in line]
    assert " ".join(lines).split()[-60:] == [f"{number:03}" for number in range(60)]
    assert lines[0].endswith("019")  # 20 numbers fit into 80 columns, 7 into 30
    assert {len(line) for line in lines[2:-1]} == {27}

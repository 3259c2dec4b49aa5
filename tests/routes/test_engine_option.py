"""The load options that Ollama does not have: who may use them, what they may be, what they do."""

import json

from tests.server_process import Server

KEY = "sk-0123456789abcd"


def test_who_may_use_load_options_and_what_they_may_be(tmp_path):
    with Server(tmp_path, "--api-key", KEY) as server:
        server.model("plain")

        def ask(secret, engine, option="engine", path="/api/generate"):
            body = {"model": "plain", "options": {option: engine}}
            headers = {"authorization": f"Bearer {secret}"}
            status, _, answer = server.request("POST", path, body, headers)
            return status, answer.decode()

        key = {"name": "app", "scopes": ["infer"]}
        headers = {"authorization": f"Bearer {KEY}"}
        made = server.request("POST", "/api/keys", key, headers)[2]
        secret = json.loads(made)["secret"]
        assert ask(KEY, "fake")[0] == 200
        assert ask(secret, None)[0] == 200
        status, answer = ask(secret, "fake")
        assert (status, "'engine': key 'app' does not allow it" in answer) == (403, True), answer
        for option, value in (("num_parallel", 2), ("kv_cache_type", "q8_0")):
            assert ask(secret, value, option)[0] == 403
            assert ask(KEY, value, option, "/api/plan")[0] == 200
        status, answer = ask(KEY, "q9", "kv_cache_type")
        assert (status, "must be one of f32, f16" in answer) == (400, True), answer
        status, answer = ask(KEY, "steam")
        assert (status, "steam" in answer) == (400, True), answer
        status, answer = ask(KEY, 7)
        assert (status, "must be of type string" in answer) == (400, True), answer


def test_a_plan_with_load_options_is_that_of_the_load(tmp_path):
    with Server(tmp_path) as server:
        server.model("plain")
        options = {"num_parallel": 3, "num_thread": 1, "num_ctx": 8192, "kv_cache_type": "q8_0"}
        for model in ("plain", "not-here"):
            status, told = server.post("/api/plan", {"model": model, "options": {"stop": [1]}})
            assert (status, "must be of an array" in told["error"]) == (400, True), told
        before = server.get("/api/plan?model=plain")
        status, plan = server.post("/api/plan", {"model": "plain", "options": options})
        assert status == 200
        assert "1 thread, as requested" in plan["reasons"]
        assert "1 thread, as requested" not in before["reasons"]
        assert "set by the load options: num_parallel, kv_cache_type" in plan["reasons"]
        server.post("/api/generate", {"model": "plain", "options": options})
        loaded = server.get("/api/plan?model=plain")
        assert loaded["loaded"] and loaded["memory"] == plan["memory"]
        assert "1 thread, as requested" in loaded["reasons"]
        again = server.post("/api/plan", {"model": "plain", "options": {"num_thread": 2}})[1]
        assert "2 threads, as requested" in again["reasons"]

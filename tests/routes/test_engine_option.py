"""The option `engine` of requests: who may use it, and what it may be."""

import json

from tests.server_process import Server

KEY = "sk-0123456789abcd"


def test_who_may_choose_an_engine_and_which(tmp_path):
    with Server(tmp_path, "--api-key", KEY) as server:
        server.model("plain")

        def ask(secret, engine):
            body = {"model": "plain", "options": {"engine": engine}}
            headers = {"authorization": f"Bearer {secret}"}
            status, _, answer = server.request("POST", "/api/generate", body, headers)
            return status, answer.decode()

        key = {"name": "app", "scopes": ["infer"]}
        headers = {"authorization": f"Bearer {KEY}"}
        made = server.request("POST", "/api/keys", key, headers)[2]
        secret = json.loads(made)["secret"]
        assert ask(KEY, "fake")[0] == 200
        assert ask(secret, None)[0] == 200
        status, answer = ask(secret, "fake")
        assert (status, "key 'app' does not allow it" in answer) == (403, True), answer
        status, answer = ask(KEY, "steam")
        assert (status, "steam" in answer) == (400, True), answer
        status, answer = ask(KEY, 7)
        assert (status, "must be of type string" in answer) == (400, True), answer

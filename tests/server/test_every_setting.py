"""A reload: every setting holds when its declaration says so, or is named with what it needs.

Each case changes one setting in the file of a running server, and looks at what the server does.
A setting without a case here fails `test_every_setting_has_a_case`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.hub.large import make_gguf
from tests.hub.server import StandInHub
from tests.registry.models import OllamaModel, store
from tests.routes.test_external import Elsewhere
from tests.routes.test_ollama_chat import until, user
from tests.server.reloaded import Reloaded, Site
from tests.server_process import FAKE
from tests.tiny import TEMPLATE, write_tiny_gguf
from vllama.base.setting import Effect
from vllama.config.settings import SETTINGS
from vllama.models.settings import MODEL_FIELDS, UPSTREAM_FIELDS

pytestmark = pytest.mark.slow

EFFECTS = {
    **{each.key: each.effect for each in SETTINGS if each.kind.list_fields is None},
    **{f"models.{each.key}": each.effect for each in MODEL_FIELDS},
    **{f"upstreams.{each.key}": each.effect for each in UPSTREAM_FIELDS},
    "upstreams": Effect.NOW,  # a list of addresses instead of tables
}
"""All settings and all fields of tables, by their keys."""

SOON = 'first_token_timeout = "0.3s"\n'
MUTE = {"model": "mute", **user()}


@dataclass(frozen=True)
class Case:
    """`after` is written after `before`; `look` then gives `seen` and, before it, something else.

    `look` None: the setting only has to be named. `once`: it would take long to look before.
    """

    after: str
    look: Callable[[], Any] | None = None
    seen: Any = True
    before: str = ""
    prepare: Callable[[], Any] = bool
    once: bool = False


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    server = Elsewhere()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def locked() -> Iterator[Elsewhere]:
    server = Elsewhere("--api-key", "sesame")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reloaded]:
    with Reloaded(tmp_path_factory.mktemp("all")) as running:
        for number, name in enumerate(("plain", "second", "third")):
            path = running.models / f"{name}.gguf"
            write_tiny_gguf(path, n_ctx=4096, template=TEMPLATE, seed=number)
            running.model(name)
        running.model("slow", "--token-interval", "0.02")
        running.model("stalls", "--stall-after", "1")
        running.model("mute", "--stall-after", "0")
        running.model("tight", "--fits", "2048")
        running.model("replays")
        running.model("broken", "--exit-before-ready", "--exit-code", "3")
        yield running


def list_cases(
    server: Reloaded, elsewhere: Elsewhere, locked: Elsewhere, folder: Path
) -> dict[str, Case]:
    """Return the cases by key; `folder` is empty."""
    there, other, site = elsewhere.url, locked.url, Site()
    revision = "hub/models--org--cached/snapshots/0123"
    for name in ("lmstudio/org/studio/studio.gguf", "own/own.gguf", f"{revision}/cached.gguf"):
        (folder / name).parent.mkdir(parents=True)
        write_tiny_gguf(folder / name)
    (folder / "hub/models--org--cached/refs").mkdir()
    (folder / "hub/models--org--cached/refs/main").write_text("0123")
    store(
        folder / "ollama",
        "registry.ollama.ai/library/stored:latest",
        OllamaModel([("model", folder / "own/own.gguf")]),
    )
    (folder / "key").write_text("sesame\n")
    (folder / "wrong").write_text("wrong\n")
    for name in ("key", "wrong"):
        (folder / name).chmod(0o600)

    def shown(name: str):
        """Return what looks at a setting of a model as the server tells it."""
        return lambda: [
            row["text"]
            for row in server.get("/api/config")["settings"]
            if row["key"].startswith("models.") and row["key"].endswith(name)
        ]

    def spent() -> float:
        return sum(row["spend"] or 0 for row in server.get("/api/usage")["usage"])

    def start(key: str, model: str = "plain") -> Callable[[], Any]:
        def look() -> Any:
            server.unload()
            return server.started(model)[key]

        return look

    def loaded_plain() -> None:
        server.unload()
        server.load("plain")

    def ask_for(name: str, what: Callable[[], Any]) -> Callable[[], Any]:
        def look() -> Any:
            site.asked.clear()
            server.pull(name)
            return what()

        return look

    def expires() -> bool:
        return server.rows()["plain"]["expires_at"] > "2100"

    def size_of_parts() -> int:
        name = f"org/big{next(numbers)}"
        with StandInHub(port=hub_port) as hub:
            hub.add_repo(name, {"big-Q8_0.gguf": make_gguf("big", "Q8_0", 0.06)})
            assert server.pull(f"hf.co/{name}")["status"] == "success"
            ranges = [re.findall(r"\d+", one.headers.get("range", "")) for one in hub.log]
        return max(int(last) + 1 - int(first) for first, last in filter(None, ranges))

    def told(pattern: str, act: Callable[[], object]) -> Callable[[], bool]:
        def look() -> bool:
            before = len(server.output)
            act()
            mark = {"x-request-id": f"told-{next(numbers)}"}  # logged after all that `act` did
            server.request("POST", "/api/show", {"model": "none"}, mark)
            output = server.wait_for(mark["x-request-id"])
            return bool(re.search(pattern, output[before:]))

        return look

    def send_own(model: str) -> None:
        status, _ = server.post("/v1/chat/completions", {"model": model, **user(), "my_sampler": 1})
        assert status == 200

    def ask_upstream() -> int:
        return server.chat("org/big")["status"]

    def used(what: Elsewhere) -> Callable[[], bool]:
        def look() -> bool:
            before = what.stats()["requests"]
            server.chat("org/big", options={"num_predict": 2})
            return what.stats()["requests"] > before

        return look

    def ask_a_dying_engine() -> int:
        server.model("replays", "--die-after", "3", once=True)
        server.unload()
        return server.chat("replays")["status"]

    def inspect() -> int:
        return server.chat(inspect={"collect": {"residual": [0]}})["status"]

    with StandInHub() as hub:
        hub_port = int(hub.url.rpartition(":")[2])
    chat, numbers = server.chat, itertools.count()
    seven = {"options": {"num_predict": 7, "seed": 7}}
    up = f'[upstreams.up]\nurl = "{there}"\n'
    shut = f'[upstreams.up]\nurl = "{other}"\n'
    pair = f'{up}%s\n[upstreams.down]\nurl = "{other}"\nkey = "sesame"\nweight = 10\n'
    hub_at = f'hf_endpoint = "{site.url}"\n'
    plain, two = "[models.plain]\n", "max_loaded_models = 2\n"
    return {
        # the server
        "host": Case('host = "127.0.0.2"\n'),
        "port": Case("port = 9\n"),
        "picker_port": Case("picker_port = 9\n"),
        "max_buffer_size": Case('max_buffer_size = "64MiB"\n'),
        "require_keys": Case("require_keys = true\n"),
        "open": Case("open = false\n"),
        "watch": Case("watch = true\n"),
        "drain_timeout": Case('drain_timeout = "11s"\n'),
        "shutdown_delay": Case('shutdown_delay = "1s"\n'),
        "tls_cert": Case(f'tls_cert = "{folder}/key"\n'),
        "tls_key": Case(f'tls_cert = "{folder}/key"\ntls_key = "{folder}/key"\n'),
        "nodes": Case(
            'nodes = ["http://127.0.0.1:1"]\n',
            lambda: [row["name"] for row in server.get("/api/nodes")["nodes"]],
            ["127.0.0.1"],
        ),
        "models_file": Case(
            f'{hub_at}models_file = "{folder}/names"\n',
            lambda: until(lambda: "org/listed" in str(site.asked)) is None,
            prepare=lambda: (folder / "names").write_text("hf.co/org/listed:Q8_0\n"),
            once=True,
        ),
        "node_key_file": Case(f'node_key_file = "{folder}/key"\n'),
        "node_certs": Case(f'node_certs = "{folder}/key"\n'),
        "no_local": Case("no_local = true\n"),
        "origins": Case(
            'origins = ["https://chat.example"]\n',
            lambda: server.status("GET", "/api/tags", origin="https://chat.example"),
            200,
        ),
        "client_key": Case('client_key = "sk-1"\n'),
        "read_only": Case(
            "read_only = true\n",
            lambda: server.status("DELETE", "/api/delete", {"model": "nothing"}),
            403,
        ),
        "no_ui": Case("no_ui = true\n", lambda: server.status("GET", "/ui/"), 404),
        "mcp_origins": Case(
            'mcp_origins = ["https://mcp.example"]\n',
            lambda: server.request("GET", "/ui/")[1]["content-security-policy"].split("; ")[-1],
            "connect-src 'self' https://mcp.example",
        ),
        # engines
        "model": Case('model = "plain"\n'),
        "engine": Case('engine = "fake"\n', told("asked for by name", loaded_plain)),
        "strict": Case(
            "strict = true\n",
            lambda: (server.unload(), server.chat("tight")["status"])[1],
            500,
        ),
        "context_length": Case("context_length = 512\n", start("context_length"), 512),
        "max_tokens": Case(
            "max_tokens = 3\n", lambda: chat(**seven)["eval_count"], 3, prepare=loaded_plain
        ),
        "gpu_layers": Case("gpu_layers = 1\n", told("though 1 on a GPU", loaded_plain)),
        "threads": Case("threads = 3\n", start("threads"), 3),
        "keep_alive": Case("keep_alive = -1\n", expires, prepare=loaded_plain),
        "load_timeout": Case('load_timeout = "77s"\n', start("stall_timeout_s"), 77),
        "num_parallel": Case("num_parallel = 3\n", start("parallel"), 3),
        "max_loaded_models": Case(
            "max_loaded_models = 1\n", lambda: len(server.evict_by("second")), 0,
            prepare=loaded_plain,
        ),
        "max_queue": Case("max_queue = 0\n", server.queue_one, 503),
        "replicas": Case("replicas = 2\n"),
        "hang_timeout": Case(
            'hang_timeout = "0.3s"\n', lambda: "error" in str(chat("stalls")), once=True,
            prepare=lambda: server.load("stalls"),
        ),
        "first_token_timeout": Case(
            'first_token_timeout = "0.3s"\n', lambda: "no token within" in str(chat("mute"))
        ),
        "early_head": Case(  # a head that went out is no error any more
            f'early_head = "0.1s"\n{SOON}', lambda: server.status("POST", "/api/chat", MUTE), 200,
            before=SOON,
        ),
        "resume": Case("resume = 0\n", ask_a_dying_engine, 500),
        "go_template": Case("go_template = false\n"),
        "flash_attention": Case("flash_attention = false\n", start("flash_attention"), False),
        "kv_cache_type": Case('kv_cache_type = "q8_0"\n', start("kv_cache_type"), "q8_0"),
        "batch_files": Case('batch_files = "1GB"\n'),
        "cache_disk": Case('cache_disk = "1GB"\n'),
        "inspect": Case("inspect = true\n", lambda: (server.unload(), inspect())[1], 200),
        "inspect_limit": Case(
            'inspect = true\ninspect_limit = "1KiB"\n',
            lambda: (server.unload(), inspect())[1], 400,
            before="inspect = true\n",
        ),
        "gpu_overhead": Case('gpu_overhead = "1GiB"\n'),
        "engine_paths": Case(f'engine_paths = {{ fake = "{FAKE}" }}\n'),
        "engine_args": Case(
            'engine_args = ["--embed-per-token"]\n',
            lambda: (server.unload(), "--embed-per-token" in server.started())[1],
        ),
        # models
        "models.engine": Case(
            plain + 'engine = "nonsuch"\n', lambda: (server.unload(), chat()["status"])[1] != 200
        ),
        "models.engine_args": Case(
            plain + 'engine_args = ["--embed-per-token"]\n',
            lambda: (server.unload(), "--embed-per-token" in server.started())[1],
        ),
        "models.context_length": Case(
            plain + "context_length = 512\n", start("context_length"), 512
        ),
        "models.num_parallel": Case(plain + "num_parallel = 3\n", start("parallel"), 3),
        "models.replicas": Case(
            plain + "replicas = 2\n",
            lambda: (loaded_plain(), until(lambda: server.rows()["plain"]["replicas"] == 2))[1],
            None,
            once=True,
        ),
        "models.gpus": Case(  # refused with a GPU, and for `strict` also without
            plain + "strict = true\ngpus = [977]\n",
            lambda: (server.unload(), chat()["status"])[1] != 200,
        ),
        "models.rpc": Case(  # a server that is not there is refused for `strict`
            plain + 'strict = true\nrpc = ["127.0.0.1:1"]\n',
            lambda: (server.unload(), chat()["status"])[1] != 200,
        ),
        "models.kv_cache_type": Case(
            plain + 'kv_cache_type = "q8_0"\n', start("kv_cache_type"), "q8_0"
        ),
        "models.cache_disk": Case(plain + "cache_disk = false\n", start("slots"), False),
        "models.inspect": Case(
            plain + "inspect = true\n", lambda: (server.unload(), inspect())[1], 200
        ),
        "models.strict": Case(
            "[models.tight]\nstrict = true\n",
            lambda: (server.unload(), chat("tight")["status"])[1],
            500,
        ),
        "models.keep_alive": Case(plain + "keep_alive = -1\n", expires, prepare=loaded_plain),
        "models.pin": Case(
            plain + "pin = true\n", expires,
            prepare=lambda: (server.unload(), server.load("plain", keep_alive=60)),
        ),
        "models.preload": Case(plain + "preload = true\n"),
        "models.priority": Case(
            two + plain + "priority = 9\n", lambda: server.evict_by("third"), {"plain"},
            before=two,
            prepare=lambda: (loaded_plain(), server.load("second")),
        ),
        "models.max_tokens": Case(
            f'upstreams = ["{there}"]\n[models."*"]\nmax_tokens = 3\n',
            lambda: [chat(name, **seven)["eval_count"] for name in ("plain", "org/big")],
            [3, 3],
            before=f'upstreams = ["{there}"]\n',
            prepare=lambda: (loaded_plain(), ask_upstream()),
        ),
        "models.price": Case(
            plain + "price = { generated = 1000000 }\n",
            lambda: -spent() + (chat(), spent())[1] > 0,
        ),
        "currency": Case('currency = "EUR"\n', lambda: server.get("/api/usage")["currency"], "EUR"),
        "models.defaults": Case(
            plain + "defaults = { temperature = 0.25 }\n",
            lambda: (chat(), server.sent("plain").get("temperature"))[1],
            0.25,
        ),
        "models.force": Case(
            plain + "force = { seed = 9 }\n",
            lambda: (chat(**seven), server.sent("plain").get("seed"))[1],
            9,
        ),
        "models.strip": Case(
            plain + 'strip = ["seed"]\n',
            lambda: (chat(**seven), server.sent("plain").get("seed"))[1],
            None,
        ),
        "models.system": Case(
            plain + 'system = "Be brief."\n',
            lambda: (chat(), server.sent("plain")["messages"][0]["content"])[1],
            "Be brief.",
        ),
        "models.pass": Case(
            plain + 'pass = ["my_sampler"]\n',
            lambda: (send_own("plain"), "my_sampler" in server.sent("plain"))[1],
            prepare=loaded_plain,
        ),
        "models.aliases": Case(
            plain + 'aliases = ["gpt"]\n', lambda: chat("gpt")["status"], 200
        ),
        "models.draft": Case(
            plain + 'draft = "second"\n', lambda: server.started()["draft"], "second",
            prepare=lambda: server.load("plain"),
        ),
        "models.fallback": Case(
            '[models.broken]\nfallback = ["plain"]\n', lambda: chat("broken")["status"], 200
        ),
        "models.fallback_after": Case(
            '[models.stalls]\nfallback = ["plain"]\nfallback_after = "0.2s"\n',
            lambda: chat("stalls")["status"],
            200,
            once=True,
        ),
        # the suite of heads tries this: here are no other machines
        "models.nodes": Case(plain + 'nodes = ["box1"]\n', shown("nodes"), ["box1"]),
        # upstreams
        "upstreams": Case(f'upstreams = ["{there}"]\n', lambda: "org/big" in server.names()),
        "upstream_key": Case(
            f'upstreams = ["{other}"]\nupstream_key = "sesame"\n', ask_upstream, 200,
            before=f'upstreams = ["{other}"]\n',
        ),
        "models.traits": Case(
            up + '[models."org/big"]\ntraits = { context_length = 1234 }\n',
            lambda: (ask_upstream(), server.rows()["org/big"]["context_length"])[1],
            1234,
            before=up,
            prepare=ask_upstream,
        ),
        "upstreams.url": Case(up, used(elsewhere), before=shut),
        "upstreams.key": Case(shut + 'key = "sesame"\n', ask_upstream, 200, before=shut),
        "upstreams.key_env": Case(
            shut + 'key_env = "KEY_RIGHT"\n', ask_upstream, 200,
            before=shut + 'key_env = "KEY_WRONG"\n',
        ),
        "upstreams.key_file": Case(
            shut + f'key_file = "{folder}/key"\n', ask_upstream, 200,
            before=shut + f'key_file = "{folder}/wrong"\n',
        ),
        "upstreams.models": Case(
            up + 'models = { "mini" = "org/big" }\n', lambda: "mini" in server.names(), before=up
        ),
        "upstreams.weight": Case(
            pair % "weight = 1000", used(elsewhere), before=pair % "", prepare=ask_upstream
        ),
        "upstreams.concurrent": Case(
            up + "concurrent = 3\n",
            lambda: (ask_upstream(), server.rows()["org/big"]["slots"])[1],
            3,
            before=up,
            prepare=ask_upstream,
        ),
        "upstreams.health_path": Case(
            f'[upstreams.up]\nurl = "{site.url}"\nhealth_path = "/alive"\n',
            lambda: until(lambda: "/alive" in [path for path, _ in site.asked]) is None,
            before=f'[upstreams.up]\nurl = "{site.url}"\n',
            once=True,
        ),
        "upstreams.health_interval": Case(
            f'[upstreams.up]\nurl = "{site.url}"\nhealth_interval = "0.02s"\n',
            lambda: (
                site.asked.clear(),
                until(lambda: len(site.asked) > 9, limit_s=30) is None,
            )[1],
            before=f'[upstreams.up]\nurl = "{site.url}"\n',
            once=True,
        ),
        "upstreams.pass": Case(
            up + 'pass = ["my_sampler"]\n',
            lambda: (send_own("org/big"), "my_sampler" in elsewhere.stats()["bodies"][-1])[1],
            before=up,
            prepare=ask_upstream,
        ),
        "upstreams.traits": Case(
            up + "traits = { context_length = 1234 }\n",
            lambda: (ask_upstream(), server.rows()["org/big"]["context_length"])[1],
            1234,
            before=up,
            prepare=ask_upstream,
        ),
        # where models come from
        "allow_registry": Case(
            'allow_registry = ["none.example"]\n' + hub_at,
            lambda: server.pull("hf.co/org/none")["status"],
            403,
            before=hub_at,
        ),
        "max_blob_size": Case(
            "max_blob_size = 3\n",
            lambda: server.status("POST", f"/api/blobs/sha256:{'0' * 64}", b"four"),
            413,
        ),
        "folders": Case(f'folders = ["{folder}/own"]\n', lambda: "own" in server.names()),
        "aliases": Case(
            hub_at + '[aliases]\nmine = "hf.co/org/none"\n',
            ask_for("mine", lambda: "org/none" in str(site.asked)),
            before=hub_at,
        ),
        "models_dir": Case(
            f'models_dir = "{folder}/ollama"\n', lambda: "stored" in server.names()
        ),
        "lmstudio_dir": Case(
            f'lmstudio_dir = "{folder}/lmstudio"\n', lambda: "studio" in str(server.names())
        ),
        "hf_cache_dir": Case(
            f'hf_cache_dir = "{folder}/hub"\n', lambda: "cached" in str(server.names())
        ),
        "ollama_registry": Case(
            f'ollama_registry = "{site.url}"\n',
            ask_for("nothing", lambda: bool(site.asked)),
            before='hf_offline = true\n',
        ),
        "hf_endpoint": Case(
            hub_at, ask_for("hf.co/org/none", lambda: bool(site.asked)),
            before='hf_endpoint = "http://127.0.0.1:9"\n',
        ),
        "hf_token": Case(
            hub_at + 'hf_token = "hf_new"\n',
            ask_for("hf.co/org/none", lambda: site.asked[0][1]),
            "Bearer hf_new",
            before=hub_at,
        ),
        "hf_offline": Case(
            hub_at + "hf_offline = true\n", ask_for("hf.co/org/none", lambda: len(site.asked)), 0,
            before=hub_at,
        ),
        "download_connections": Case(
            f'hf_endpoint = "http://127.0.0.1:{hub_port}"\ndownload_connections = 1\n',
            size_of_parts,
            15_937_152,
            before=f'hf_endpoint = "http://127.0.0.1:{hub_port}"\ndownload_connections = 8\n',
        ),
        # what is written
        "data_dir": Case(f'data_dir = "{folder}/data"\n'),
        "log_dir": Case(f'log_dir = "{folder}/log"\n'),
        "run_dir": Case(f'run_dir = "{folder}/run"\n'),
        "nohistory": Case("nohistory = true\n"),
        "debug": Case(
            "debug = true\n", told(r"(?m)DEBUG.*plan plain", loaded_plain)
        ),
        "capture": Case("capture = 3\n"),
        "log_format": Case('log_format = "json"\n'),
        "otlp_endpoint": Case(f'otlp_endpoint = "{site.url}"\n'),
    }  # fmt: skip


KEYS = ("api_key", "api_key_file", "inspect_code")
"""These have servers of their own, which are never opened again: `test_reload`."""


@pytest.fixture(scope="module")
def cases(
    server: Reloaded,
    elsewhere: Elsewhere,
    locked: Elsewhere,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Case]:
    return list_cases(server, elsewhere, locked, tmp_path_factory.mktemp("files"))


def test_every_setting_has_a_case(cases: dict[str, Case]) -> None:
    assert {*cases, *KEYS} == set(EFFECTS)
    for key, case in cases.items():
        shown = case.look is not None
        assert shown is (EFFECTS[key] in (Effect.NOW, Effect.NEXT_LOAD)), key


@pytest.mark.parametrize("key", sorted(EFFECTS.keys() - set(KEYS)))
def test_a_changed_setting_holds_or_is_named(
    server: Reloaded, cases: dict[str, Case], key: str
) -> None:
    case, effect = cases[key], EFFECTS[key]
    pattern = rf"{key.replace('.', '[.]([^ ]+[.])?')}(?= \(| needs|:|;|$)"
    server.use(case.before)
    case.prepare()
    if case.look is not None and not case.once:
        assert case.look() != case.seen
        case.prepare()
    pids = {name: row["pid"] for name, row in server.rows().items() if row["engine"] == "fake"}
    output = server.use(case.after)
    told = re.search(rf"(?m){pattern}.*$", output)
    if effect is Effect.COMMANDS:
        assert told is None
        return
    assert told, output
    assert ("needs a restart" in told[0]) is (effect is Effect.RESTART)
    assert ("loaded the next time" in told[0]) is (effect is Effect.NEXT_LOAD)
    if effect is Effect.RESTART:
        if not key.startswith("models."):
            was = server.show(key)
            server.use(case.before)
            assert server.show(key) == was and was["effect"] == "restart" and was["needs_restart"]
        return
    if effect is Effect.NEXT_LOAD:  # nothing that runs is touched
        assert pids == {name: row["pid"] for name, row in server.rows().items()}
    assert case.look is not None
    assert case.look() == case.seen
    server.use(case.before)
    if not case.once:
        case.prepare()
        assert case.look() != case.seen  # taken away, it holds no more

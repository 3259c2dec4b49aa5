"""The files for Prometheus and Grafana, with a real Prometheus (Debian: apt install prometheus)."""

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from tests.lacking import lacking
from tests.ports import free_port
from tests.routes.test_ollama_chat import until, user
from tests.server_process import Server

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "vllama.json"


def need(program: str) -> str:
    """Return the path of a program of Prometheus."""
    return shutil.which(program) or lacking(f"{program} is missing: apt install prometheus")


def promtool(*arguments: str, stdin: bytes = b"") -> str:
    done = subprocess.run(
        [need("promtool"), *arguments], input=stdin, capture_output=True, check=False
    )
    told = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, told
    return told


def test_alerts_are_valid_and_fire_when_they_should():
    promtool("check", "rules", str(ALERTS))
    promtool("test", "rules", str(Path(__file__).with_name("alerts_test.yml")))


def test_every_alert_is_tested():
    names = [line.split()[-1] for line in ALERTS.read_text().splitlines() if "- alert:" in line]
    tests = Path(__file__).with_name("alerts_test.yml").read_text()
    assert len(names) > 10
    assert not [name for name in names if name not in tests]


@pytest.mark.slow
def test_what_alerts_take_the_increase_of_is_there_from_the_beginning(tmp_path):
    """Prometheus computes no increase of a series that begins with its first burst."""
    names = set(re.findall(r"increase\((\w+)", ALERTS.read_text()))
    assert len(names) >= 4

    def read(server) -> set[str]:
        text = metrics(server)
        zero = re.compile(r"^(\w+)\{(?:model|outcome)=\"(m:latest|error)?\"\} 0\.0$", re.M)
        return {name for name, label in zero.findall(text) if label}

    with Server(tmp_path, env={"VLLAMA_MAX_QUEUE": "1"}) as server:
        server.model("m", "--stall-after", "1")
        name = "vllama_queue_refusals_total"
        for _ in range(2):  # a server that is started again begins anew
            assert f'{name}{{model=""}} 0.0' in metrics(server)
            with server.open("/api/chat", {"model": "m", **user()}) as first:
                first.readline()
                assert names <= read(server)
                clients = [server.connect() for _ in range(4)]
                for client in clients:
                    client.request("POST", "/api/chat", json.dumps({"model": "m", **user()}))
                until(lambda: f'{name}{{model="m:latest"}} 3.0' in metrics(server))
                for client in clients:
                    client.close()
            server.__exit__()
            server.start()


def metrics(server) -> str:
    return server.request("GET", "/metrics")[2].decode()


def list_queries() -> list[tuple[str, str]]:
    """Return the title and query of every target of the dashboard."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [
        (panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", ())
    ]


def test_the_dashboard_is_what_its_script_writes():
    program = "from scripts.dashboard import write_dashboard as w; print(w(), end='')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == DASHBOARD.read_text(), "run: python scripts/dashboard.py"


def test_the_dashboards_panels_have_places_of_their_own():
    dashboard = json.loads(DASHBOARD.read_text())
    taken = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    assert variables == {"datasource", "instance", "model"}


class Prometheus:
    """A running Prometheus that scrapes one server every second."""

    def __init__(self, folder: Path, target: str) -> None:
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [{"job_name": "vllama", "static_configs": [{"targets": [target]}]}],
        }
        file = folder / "prometheus.yml"
        file.write_text(json.dumps(config))  # YAML takes JSON
        promtool("check", "config", str(file))
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = folder / "prometheus.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    need("prometheus"),
                    f"--config.file={file}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def query(self, expression: str) -> list[dict]:
        """Return the result of an instant query."""
        arguments = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{arguments}") as answer:
            return json.load(answer)["data"]["result"]

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return bool(self.query("up == 1"))
        except OSError:
            return False

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def make_work(server) -> None:
    """Have the server do everything that the dashboard shows."""
    plain, shows = server.model("counts-plain"), server.model("counts-shows")
    for name in (plain, shows):
        body = {"model": name, **user(), "stream": False}
        assert server.post("/api/chat", body)[0] == 200
    assert server.post("/api/chat", {"model": "nope", **user()})[0] == 404
    fails = server.model("fails", "--exit-before-ready", "--exit-code", "3")
    assert server.post("/api/chat", {"model": fails, **user()})[0] == 500
    assert server.post("/api/generate", {"model": plain, "keep_alive": 0})[0] == 200


@pytest.mark.slow
def test_a_real_prometheus_scrapes_and_every_panel_has_data(tmp_path):
    need("prometheus")
    with (
        Server(tmp_path / "node") as node,
        Server(tmp_path / "home", "--node", f"http://127.0.0.1:{node.port}") as server,
    ):
        make_work(server)
        text = server.request("GET", "/metrics")[2]
        own = [line for line in text.splitlines() if b"fake" not in line and b"vllm:" not in line]
        promtool("check", "metrics", stdin=b"\n".join(own) + b"\n")
        prometheus = Prometheus(tmp_path, f"127.0.0.1:{server.port}")
        try:
            until(prometheus.is_up)
            make_work(server)
            begun = time.monotonic()
            missing = list_queries()

            def have_data() -> bool:
                make_work(server)  # rates need something that grows
                missing[:] = [one for one in missing if not has_data(prometheus, one[1])]
                return not missing or time.monotonic() > begun + 60

            until(have_data)
            assert not missing
            failed = prometheus.query(
                'max_over_time(vllama_model_state{state="failed", model="fails:latest"}[1m])'
            )
            assert failed[0]["value"][1] == "1"
            assert prometheus.query("up{job='vllama'}")[0]["value"][1] == "1"
            # what an engine exports itself has come through the format that Prometheus prefers
            assert prometheus.query('fake:requests_total{model="counts-shows:latest"}')
        finally:
            prometheus.stop()


def has_data(prometheus: Prometheus, query: str) -> bool:
    """Return whether a panel's query has a number, with all variables at "All"."""
    query = query.replace("$__rate_interval", "1m")
    query = query.replace("$instance", ".*").replace("$model", ".*")
    return any(row["value"][1] != "NaN" for row in prometheus.query(query))

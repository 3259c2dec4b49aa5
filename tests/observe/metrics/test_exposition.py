"""The written formats, read again by the library's strict parsers."""

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from tests.fake_engine.engine import METRICS
from vllama.observe.metrics.exposition import (
    OPENMETRICS,
    TEXT,
    make_families,
    merge_families,
    parse_text,
    write_families,
)
from vllama.observe.metrics.server_metrics import (
    MAX_SERIES,
    OTHER,
    Counter,
    Gauge,
    Histogram,
    Metrics,
)

SCRAPER = (
    "application/openmetrics-text;version=1.0.0;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def make_instruments():
    counter = Counter("things", 'Things, "quoted"\nand \\broken.', ("kind",))
    counter.add(('a "b"\\\n',), 2)
    histogram = Histogram("wait_seconds", "Waits.", ("model",), bounds=(0.1, 1))
    for value in (0.1, 0.2, 5):
        histogram.observe(("m",), value)
    gauge = Gauge("vllama_build_info", "Versions.", ("version",))
    gauge.add(("1",), 1)
    return [counter, histogram, gauge]


def samples(text: bytes, read) -> dict:
    """Return all samples by name and labels; each may be there once."""
    found = {}
    for family in read(text.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


@pytest.mark.parametrize(("accept", "read"), [("", read_text), (SCRAPER, read_openmetrics)])
def test_own_families_are_written_in_both_formats(accept, read):
    text, _ = write_families(make_families(make_instruments()), accept)
    found = samples(text, read)
    assert found["things_total", (("kind", 'a "b"\\\n'),)] == 2
    buckets = [
        found["wait_seconds_bucket", (("le", le), ("model", "m"))] for le in ("0.1", "1.0", "+Inf")
    ]
    assert buckets == [1, 2, 3]
    assert found["wait_seconds_sum", (("model", "m"),)] == pytest.approx(5.3)


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain;version=0.0.4", TEXT),
        ("application/openmetrics-text;q=0, text/plain", TEXT),
        ("text/html,application/xhtml+xml,*/*;q=0.8", TEXT),
        ("application/openmetrics-text", OPENMETRICS),
        ("Application/OpenMetrics-Text; Version=1.0.0; Q=0.1", OPENMETRICS),
        (SCRAPER, OPENMETRICS),
    ],
)
def test_the_format_is_one_that_the_scraper_names(accept, content_type):
    text, found = write_families([], accept)
    assert found == content_type
    assert text == (b"# EOF\n" if content_type == OPENMETRICS else b"")


@pytest.mark.parametrize(("accept", "read"), [("", read_text), (SCRAPER, read_openmetrics)])
def test_engines_are_merged_into_one_valid_exposition(accept, read):
    own = make_families(make_instruments())
    engines = {("m", "1"): parse_text(METRICS), ("n", "1"): parse_text(METRICS)}
    text, _ = write_families(merge_families(own, engines), accept)
    for kind in ("HELP", "TYPE"):
        heads = [line.split()[2] for line in text.decode().splitlines() if f"# {kind}" in line]
        assert len(heads) == len(set(heads))
    found = samples(text, read)
    for model in ("m", "n"):
        target = (("model", model), ("replica", "1"))
        inside = (("exported_model", "inside"), ("model", model), ("path", 'a "b" c'))
        assert found["fake:requests_total", (*inside, ("replica", "1"))] == 3
        assert found["fake:latency_seconds_count", target] == 2
        assert found["fake_untyped", target] == 5
        assert found["process_open_fds", target] == 7
    # another type than ours, and a name that OpenMetrics reserves
    assert not [name for name, _ in found if name.endswith(("_info_total", "_created"))]
    assert found["vllama_build_info", (("version", "1"),)] == 1


@pytest.mark.parametrize("text", ["# TYPE x\n{", "x{a=", "x one", "<html>"])
def test_what_is_no_exposition_is_refused(text):
    with pytest.raises(ValueError):
        write_families(merge_families([], {("m", "1"): parse_text(text)}), "")


def test_the_number_of_series_is_bounded():
    counter = Counter("things", "Things.", ("model", "kind"))
    histogram = Histogram("wait_seconds", "Waits.", ("model",), bounds=(1,))
    for number in range(MAX_SERIES + 50):
        counter.add((f"m{number}", "x"))
        histogram.observe((f"m{number}",), 2)
    assert len(counter.values) == len(histogram.values) == MAX_SERIES + 1
    assert counter.values[OTHER, OTHER] == 50
    assert histogram.values[(OTHER,)] == [0, 50, 100]
    counter.add(("m0", "x"))
    assert counter.values["m0", "x"] == 2


def test_the_series_of_a_removed_model_go():
    metrics = Metrics()
    for model in ("kept", "removed"):
        metrics.count_request(model=model, route="/api/chat", dialect="ollama", status=500,
                              outcome="error", key="removed", seconds=1.0, reason="x")  # fmt: skip
        metrics.count_usage("removed", model, prompt=1, cached=1, generated=1)
        metrics.queue_time.observe((model,), 1.0)
    metrics.forget("removed")
    models = {
        dict(zip(one.labels, labels, strict=True)).get("model")
        for one in metrics.list_instruments()
        for labels in one.values
    }
    assert models == {None, "", "kept"}
    assert metrics.usage.values["removed", "kept", "prompt"] == 1

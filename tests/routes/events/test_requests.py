"""Which requests the stream calls running, where more end at once than it tells the ends of."""

from types import SimpleNamespace
from typing import Any

from vllama.dialects.events import ChangedRequests, RequestRow
from vllama.routes.events.hub import RowChanges


def make_row(number: int) -> RequestRow:
    return RequestRow(
        id=str(number),
        model="m",
        method="POST",
        path="/api/chat",
        dialect="ollama",
        client="",
        key=None,
        state="running",
        queue_place=None,
        waits_for=None,
        started_at="",
        prompt_tokens=None,
        generated_tokens=0,
        first_token_s=None,
        resumed=0,
    )


def test_a_request_is_gone_though_its_end_is_not_told():
    rows = [make_row(number) for number in range(3)]
    marks = SimpleNamespace(list_after=lambda count: [], count=0)
    server: Any = SimpleNamespace(
        marks=marks,
        list_models=list,
        list_failures=list,
        list_queue_places=dict,
        list_rows=lambda places=None: list(rows) if places is not None else [],
        list_after=lambda count: [],
        list_ended=list,
        count=0,
        lists=0,
    )
    changes = RowChanges(server, server, server, server, server, server, None)
    changes.collect()
    rows.append(make_row(3))
    changes.make_snapshot(frozenset({"requests"}))  # for one who comes between two calls
    del rows[3]
    del rows[:2]
    ((_, _, changed),) = changes.collect()
    assert isinstance(changed, ChangedRequests)
    assert (changed.gone, changed.ended, changed.requests) == (["0", "1", "3"], [], [])

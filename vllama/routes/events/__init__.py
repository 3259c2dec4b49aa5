"""The stream of events, `/api/events`: what changes in the server, for all who look on.

| File | What it does |
|---|---|
| `models.py` | the rows of models |
| `activity.py` | counts what requests do, and keeps the latest that have ended |
| `disk.py` | notices models that come and go on the disk |
| `history.py` | takes the samples of the last hour |
| `changes.py` | compares the state with what was last told |
| `hub.py` | the subscribers; encodes every event once for all of them |

The handler is `routes/event_stream.py`. Nothing here is called for a token, and only `activity.py`
for a request. Without subscribers nothing is compared or encoded.
"""

"""The stream of events, `/api/events`: what changes in the server, for all who look on.

| File | What it does |
|---|---|
| `activity.py` | counts what requests do; keeps the latest that have ended, samples, and minutes |
| `rows.py` | makes the rows of models |
| `hub.py` | compares the state with what was last told; sends changes to all subscribers |

The handler is in `routes/server/state.py`. Nothing here is called for a token, and only
`activity.py` for a request. Without subscribers nothing is compared or encoded.
"""

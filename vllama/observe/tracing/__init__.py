"""Traces of requests for OpenTelemetry (the extra `otel`): one trace per request.

`current` is all that the rest of the program needs; it imports nothing and costs a look-up where
tracing is off. OpenTelemetry itself is imported by `setup`, only if traces are wanted.
"""

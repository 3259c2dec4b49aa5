"""The records of requests: running ones, logs, traces, captures, metering."""

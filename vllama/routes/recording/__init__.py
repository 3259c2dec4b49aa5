"""What is kept of each request: running ones, logs, traces, captures, metering."""

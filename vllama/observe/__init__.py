"""What the server tells of itself: metrics, traces, captured requests."""

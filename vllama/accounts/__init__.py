"""Who may ask what, and what was asked: keys, limits, usage."""

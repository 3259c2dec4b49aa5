"""The web for models: a search by a SearXNG of the user's, and pages as text."""

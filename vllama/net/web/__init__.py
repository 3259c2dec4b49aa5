"""The world outside: one HTTP client, searches by a SearXNG of the user's, and pages as text."""

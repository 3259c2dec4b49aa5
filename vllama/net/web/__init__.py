"""The world outside: one HTTP client."""

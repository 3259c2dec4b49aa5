"""vllama as a service of the machine or of a user: systemd on Linux, launchd on macOS."""

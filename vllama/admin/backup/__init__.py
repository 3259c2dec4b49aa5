"""What a server has of its own in one file, to keep it or to move it to another machine."""

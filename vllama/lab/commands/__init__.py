"""The commands of the lab, one a file."""

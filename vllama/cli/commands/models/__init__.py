"""The commands about models on this disk, one a file."""

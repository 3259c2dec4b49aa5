"""Captures: requests with their answers, as files. The form of a file, and the folder of them."""

"""What measures engines and finds regressions, with commands of its own."""

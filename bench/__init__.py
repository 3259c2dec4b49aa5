"""What `make bench` runs: a synthetic engine, a load client, and the comparison of fronts."""

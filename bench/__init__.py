"""The programs behind `make bench`: a synthetic engine, a load client, a comparison of fronts."""

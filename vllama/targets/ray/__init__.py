"""Machines that Ray joins, as nodes: imported only with `--cluster ray`, and by `vllama join`."""

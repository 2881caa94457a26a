"""Benchmarks: the commands behind every figure in the README and docs."""

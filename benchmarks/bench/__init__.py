"""Benchmarks of heartlm and alternatives on this machine, run in turns."""

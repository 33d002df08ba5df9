"""Compiled hot loops. They need the compiled library; `heartlm.kernels.library` raises an error without it."""

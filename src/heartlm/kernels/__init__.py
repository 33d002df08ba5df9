"""Compiled hot loops, with references in the tests. `heartlm.kernels.library` raises an error without the library."""

"""Compiled hot loops, each with a plain reference implementation, which is used, slower, if nothing was compiled."""

"""Compiled hot loops, each with a plain reference beside it. Works, slower, where nothing could be compiled."""

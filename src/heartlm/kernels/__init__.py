"""Compiled hot loops, each with a plain reference next to it. Works, slower, where nothing could be compiled."""

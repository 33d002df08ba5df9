"""Watching runs while they train."""

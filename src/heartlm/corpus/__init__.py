"""Tokens on disk, windows out."""

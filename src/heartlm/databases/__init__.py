"""Folders of recordings: catalogue, download, verification, splits, conversion, and work on each recording."""

"""Campaigns: many runs of one file, on this machine or as job arrays."""

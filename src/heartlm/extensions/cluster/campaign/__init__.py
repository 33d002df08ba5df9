"""Campaigns: many runs from one file, on this machine or on SLURM."""

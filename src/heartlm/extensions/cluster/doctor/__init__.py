"""Measurements of a machine or an allocation, and advice on settings; one module per group of checks."""

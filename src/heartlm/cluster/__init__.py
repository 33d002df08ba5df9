"""Batch scripts, site profiles, submitting, campaigns, the container image and the doctor."""

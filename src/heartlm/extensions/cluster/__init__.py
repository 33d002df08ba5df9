"""Batch scripts, site profiles, job submission, campaigns, the container image and the doctor."""

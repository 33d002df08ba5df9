"""Recordings, annotations and leads, and the detection and matching of heartbeats."""

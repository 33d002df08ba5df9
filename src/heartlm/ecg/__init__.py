"""Recordings in: readers, annotations, databases, splits, QRS detection and the simulator."""

"""Readers, annotations, databases, splits, QRS detection and the simulator."""

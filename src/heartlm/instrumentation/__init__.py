"""Spans, meters, profilers, energy and utilisation: where the time of a run goes."""

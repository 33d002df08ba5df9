"""Delineation: where P, QRS and T begin, peak and end; intervals, amplitudes and the axis."""

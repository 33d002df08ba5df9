"""Display of runs while they train."""

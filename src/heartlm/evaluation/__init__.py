"""Scores as the field defines them, with baselines and confidence intervals."""

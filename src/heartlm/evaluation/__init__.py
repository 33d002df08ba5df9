"""Evaluation with the standard scores of the field, baselines and confidence intervals."""

"""Classes and labels of tokens and windows, which training, models and scores share."""

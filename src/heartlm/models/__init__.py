"""The transformer and its heads."""

"""Ranks, process groups, starting processes, reductions and the synchronisation of gradients."""

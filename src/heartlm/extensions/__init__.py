"""Rooms that none of the others needs: clusters, scaling, federated averaging, the convolution on CPUs."""

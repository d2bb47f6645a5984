"""Partitioning: a joint graph cut into a forward and a backward graph, and the choice of what is saved between them."""

"""Lowerings of operators that compute each element of the result from the elements at the same place."""

"""Scheduling: fusion, order of loops, order of steps, concurrent launches and the memory plan."""

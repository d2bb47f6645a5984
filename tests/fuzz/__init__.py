"""Random small Python programs, run plainly and under Kiln."""

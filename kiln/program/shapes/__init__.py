"""Fake tensors and what is known of their shapes: the shape cache, rules that torch lacks, symbolic expressions."""

"""What all stages share: the operator table, fake tensors and shapes, graphs, memory, hook slots, the disk cache."""

"""From real objects to shadows, with the guards that this takes: tensors, symbolic numbers, native arguments."""

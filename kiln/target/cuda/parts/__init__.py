"""Parts of a thread's code that stand for themselves: points in turns, conditions that stop the GPU."""

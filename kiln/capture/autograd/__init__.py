"""Rules for autograd in captured code: functions, gradients, checkpoints, hooks."""

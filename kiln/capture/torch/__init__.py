"""Rules for torch: calls, tensor attributes, subclasses, overrides, global state, modules, optimizers."""

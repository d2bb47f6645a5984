"""Graph modules that consume lists of tensors; how they do that is capture's business."""

from ..program.consumed_lists import get_locals_to_steal, set_locals_to_steal

__all__ = ["get_locals_to_steal", "set_locals_to_steal"]

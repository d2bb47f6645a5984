"""Which sums of exponentials of distances from the greatest value are computed in one run with that value."""

from __future__ import annotations

import torch

from kiln.loops.ir import Expr
from kiln.loops.kernel import Reduction

from ...platform.light_dataclass import dataclass
from ..llvm.phases import Phase


@dataclass(frozen=True)
class OnlineSum:
    """Two phases that run as one: the greatest of a value, then the sum of ``powers``."""

    greatest: Reduction
    total: Reduction
    powers: Expr  # exp(value - greatest)


def online_sum(phases: tuple[Phase, ...]) -> OnlineSum | None:
    """The first two phases as one, if they have that form."""
    if len(phases) < 2 or any(len(phase.reductions) != 1 or phase.outputs for phase in phases[:2]):
        return None
    greatest, total = phases[0].reductions[0], phases[1].reductions[0]
    powers = total.value
    if greatest.kind != "max" or total.kind != "sum" or powers.kind != "exp" or powers.dtype is not torch.float32:
        return None
    (distance,) = powers.args
    if distance.kind != "sub" or distance.args[0] is not greatest.value:
        return None
    is_from_greatest = distance.args[1].kind == "reduced" and distance.args[1].payload == greatest.number
    return OnlineSum(greatest, total, powers) if is_from_greatest else None

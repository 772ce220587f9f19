"""The optimize stage's passes, in order: from the exporter's graph to the form that a profile's compiler likes."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from edgeforge.graph import legal
from edgeforge.graph.chunk import SliceChunks
from edgeforge.graph.empty import DropEmpty
from edgeforge.graph.fold import fold, lift_constants
from edgeforge.graph.norm import FuseRMSNorm
from edgeforge.graph.offset import FoldOffset
from edgeforge.graph.rank import LiftRank
from edgeforge.graph.requantize import InsertRequantize
from edgeforge.graph.rope import FuseRope, LowerRope
from edgeforge.graph.scale import FoldScale
from edgeforge.graph.static import StaticShapes
from edgeforge.graph.unfuse import SplitFused
from edgeforge.graph.views import CancelViews
from edgeforge.targets import Profile


def optimize(model: ir.Model, profile: Profile) -> ir.Model:
    """Returns an equivalent graph; parameters keep their names, values keep theirs or die.

    Raises:
        UnsupportedError: something is left that no target of this profile runs (named).
    """
    dead = common.RemoveUnusedNodesPass()
    lift_constants(model)
    StaticShapes()(model)
    dead(model)
    model = fold(model)
    passes: list[ir.passes.InPlacePass] = [StaticShapes(), DropEmpty(), SliceChunks(), FoldOffset()]
    passes += [FuseRMSNorm(), FuseRope()]
    if profile.linear == "conv1x1":
        passes.append(SplitFused())
    passes.append(FoldScale())
    if profile.lower_rope:
        passes.append(LowerRope())
    if profile.linear == "conv1x1":
        passes.append(LiftRank())
    merge = common.CommonSubexpressionEliminationPass()
    ir.passes.Sequential(*passes, CancelViews(), merge, CancelViews(), InsertRequantize(), dead)(model)
    legal.check(model.graph, profile)
    return model

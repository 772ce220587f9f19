"""The optimize stage's passes for any ONNX graph: to the form that a profile's compiler likes."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from edgeforge.graph import legal
from edgeforge.graph.batchnorm import FoldBatchNorm
from edgeforge.graph.chunk import SliceChunks
from edgeforge.graph.constants import FoldConstants
from edgeforge.graph.empty import DropEmpty
from edgeforge.graph.gelu import FuseGelu
from edgeforge.graph.gemm import PlainGemm
from edgeforge.graph.indices import NarrowInputs, PlainIndices
from edgeforge.graph.mask import BoundMask
from edgeforge.graph.norm import FuseRMSNorm
from edgeforge.graph.operand import RequantizeFixed, RequantizeOperands
from edgeforge.graph.reciprocal import DivideOne
from edgeforge.graph.scale import FoldScale
from edgeforge.graph.spell_attention import SpellAttention
from edgeforge.graph.static import StaticShapes
from edgeforge.graph.unshare import UnshareConstants
from edgeforge.graph.views import CancelViews
from edgeforge.targets import Profile


def optimize(model: ir.Model, profile: Profile) -> ir.Model:
    """Returns an equivalent graph; parameters keep their names, values keep theirs or die.

    Raises:
        UnsupportedError: something is left that no target of this profile runs (named).
    """
    dead = common.RemoveUnusedNodesPass()
    merge = common.CommonSubexpressionEliminationPass()
    passes: list[ir.passes.InPlacePass] = [
        dead, FoldConstants(), StaticShapes(), DropEmpty(), SliceChunks(), PlainIndices(), NarrowInputs(),
        SpellAttention(profile.masked), BoundMask(profile.masked), FoldBatchNorm(), PlainGemm(), FuseRMSNorm(),
        DivideOne(), FuseGelu(), FoldScale(), CancelViews(), merge, CancelViews(), dead]
    ir.passes.Sequential(*passes)(model)
    legal.check_plain(model.graph, profile)
    ir.passes.Sequential(UnshareConstants(), RequantizeFixed(), RequantizeOperands())(model)
    return model

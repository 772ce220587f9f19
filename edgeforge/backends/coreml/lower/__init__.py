"""What each ONNX op becomes on the Neural Engine: one small function an op."""

from __future__ import annotations

from edgeforge.backends.coreml.emit import Lowering
from edgeforge.backends.coreml.lower import codes, norms, pointwise, products, states, views

TABLE: dict[str, Lowering] = {**pointwise.TABLE, **norms.TABLE, **products.TABLE, **views.TABLE,
                              **states.TABLE, **codes.TABLE}

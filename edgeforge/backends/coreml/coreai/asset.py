"""Everything that we take from Core AI (coreai-core 1.0.0b3, coreai-torch 0.4.3: beta, pinned): modules as an .aimodel,
and an .aimodel executed here."""

from __future__ import annotations

import asyncio
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from edgeforge_runtime.executors.base import Arrays, join_logits, run_parts
from edgeforge_runtime.manifest import Graph, Part

from edgeforge.backends.coreml import place
from edgeforge.backends.coreml.coreai.module import GraphModule

with warnings.catch_warnings():  # it was validated with torch 2.13.0, and says so of 2.13.0+cpu
    warnings.simplefilter("ignore")
    import coreai_torch
    import coreai_torch._compression.custom_layers  # registers torch.ops.coreai.*
    from coreai.authoring import AIModelAsset
    from coreai.runtime import NDArray


@dataclass(frozen=True)
class Entry:
    """One function of an asset."""

    module: GraphModule
    inputs: Sequence[str]
    outputs: Sequence[str]


def write(entries: Mapping[str, Entry], path: Path) -> None:
    """Writes the functions as path; equal weights are stored once. Core AI's serialiser makes other bytes of the same
    program in every process, so that two builds of an asset can be compared by what they compute alone.

    Raises:
        EdgeForgeError: see place.require_new.
    """
    place.require_new(path, place.ASSET, "a Core AI asset")
    converter = coreai_torch.TorchConverter(mode=coreai_torch.TorchConverter.Mode.RELEASE)
    for name, entry in entries.items():
        program = torch.export.export(entry.module.eval(), entry.module.example())
        converter.add_exported_program(program.run_decompositions(coreai_torch.get_decomp_table()),
                                       input_names=entry.inputs, output_names=entry.outputs, entrypoint_name=name)
    try:
        converter.to_coreai().save_asset(path.resolve())
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


class CoreAiExecutor:
    """An asset as an executor of the runtime: Apple's, on this CPU. See Executor; floats are handed over as `dtype`."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        self._loop = asyncio.new_event_loop()
        self._open = AIModelAsset.load(path.resolve()).executable()
        self._model = self._loop.run_until_complete(self._open.__aenter__())
        self._functions = {name: self._model.load_function(name) for name in self._model.function_names}

    def run(self, graph: Graph, feeds: Arrays) -> Arrays:
        """See Executor.run."""
        return run_parts(graph, feeds, self._run)

    def close(self) -> None:
        """Frees the model."""
        if self._loop.is_closed():
            return
        self._functions.clear()
        del self._model
        self._loop.run_until_complete(self._open.__aexit__(None, None, None))
        self._loop.close()

    def _run(self, part: Part, feeds: Arrays) -> Arrays:
        given = {name: NDArray(np.ascontiguousarray(a, self._dtype if a.dtype.kind == "f" else a.dtype))
                 for name, a in feeds.items()}
        made = self._loop.run_until_complete(self._call(part.graph, given))
        arrays = join_logits({name: np.array(value.numpy()) for name, value in made.items()})
        return {t.name: arrays[t.name].astype(t.dtype) for t in part.outputs}

    async def _call(self, function: str, given: dict[str, Any]) -> Any:
        return await self._functions[function](inputs=given)

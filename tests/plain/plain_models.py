"""Small networks that are no language models, exported by torch as anybody would, with samples and a recipe."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch import nn

Arrays = dict[str, npt.NDArray[Any]]
TOKENS, VOCAB, SAMPLES = 16, 100, 16
LATEST = 24

torch.set_num_threads(1)

RECIPE = """\
model: {{onnx: {onnx}, calibration: {samples}}}
out: {out}
target: {{chip: snapdragon-8-gen-3}}
{more}
"""


class Block(nn.Module):
    """Convolutions 3x3, depthwise and 1x1, with norms, Relu and Relu6, around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.wide_norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.deep = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
        self.deep_norm, self.point = nn.BatchNorm2d(width), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.wide_norm(self.wide(x)))
        y = self.point(nn.functional.relu6(self.deep_norm(self.deep(y))))
        return torch.relu(x + y)


class Cnn(nn.Module):
    """Stem, max pool, a block, a side branch, average pool and classifier: image [1, 3, 32, 32] -> logits [1, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.block, self.side = Block(16), nn.Conv2d(16, 8, 1)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(24, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.stem(image))), 2)
        x = self.block(x)
        x = torch.cat([x, torch.sigmoid(self.side(x))], 1)
        return self.head(self.drop(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)))


class Encoder(nn.Module):
    """transformers' BERT: ids and mask [1, 16] -> hidden [1, 16, 64] and pooled [1, 64]."""

    def __init__(self, attention: str = "sdpa") -> None:
        super().__init__()
        config = transformers.BertConfig(
            vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
            max_position_embeddings=32, attn_implementation=attention)
        self.bert = transformers.BertModel(config)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.bert(input_ids=input_ids, attention_mask=attention_mask)
        return made.last_hidden_state, made.pooler_output


def cnn() -> nn.Module:
    return _randomised(Cnn())


def encoder(attention: str = "sdpa") -> nn.Module:
    return _randomised(Encoder(attention))


def _randomised(model: nn.Module) -> nn.Module:
    """Every parameter and statistic far from its initial value, so that whatever is skipped costs decibels."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not tensor.dtype.is_floating_point:
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if tensor.ndim > 1:
            tensor.data = noise * (1.5 / tensor[0].numel() ** 0.5) if "embeddings" not in name else 0.5 * noise
        elif "var" in name:
            tensor.data = noise.abs() + 0.5
        else:
            tensor.data = 0.3 * noise + (0.0 if "bias" in name or "mean" in name else 1.0)
    return model.eval()


def images(count: int = SAMPLES) -> Arrays:
    """Smooth random pictures: blobs in front of a gradient, so that neighbours have something to do with each other."""
    rng = np.random.default_rng(5)
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, 32), np.linspace(-1, 1, 32), indexing="ij"))
    found = []
    for _ in range(count):
        centre, slope, colour = rng.uniform(-1, 1, (2, 1, 1)), rng.normal(size=(2, 1, 1)), rng.normal(size=(3, 1, 1))
        blob = np.exp(-4 * ((grid - centre) ** 2).sum(0))
        found.append(colour * blob + (slope * grid).sum(0) + 0.1 * rng.normal(size=(3, 32, 32)))
    return {"image": np.stack(found)[:, None].astype(np.float32)}


def sentences(count: int = SAMPLES) -> Arrays:
    """Ids with the usual imbalance, and masks of 6 to 16 tokens."""
    rng = np.random.default_rng(6)
    ids = np.minimum(rng.zipf(1.3, (count, 1, TOKENS)), VOCAB - 1).astype(np.int64)
    mask = (np.arange(TOKENS) < rng.integers(6, TOKENS + 1, (count, 1, 1))).astype(np.int64)
    return {"input_ids": ids, "attention_mask": mask}


def export(model: nn.Module, samples: Arrays, path: Path, opset: int = 20, **options: Any) -> Path:
    """The file that torch writes; opset 17 by the older exporter, which the newer one does not know."""
    inputs = tuple(torch.from_numpy(array[0]) for array in samples.values())
    names = {"input_names": list(samples), "output_names": ["hidden", "pooled"] if len(samples) > 1 else ["logits"]}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(model, inputs, path, opset_version=opset, dynamo=opset > 17, **names,
                          **({"external_data": False} if opset > 17 else {}), **options)
    return path


def recipe(folder: Path, onnx: Path, samples: Arrays, more: str = "", name: str = "bundle") -> Path:
    """A recipe beside its samples; the bundle goes to folder/out/<name>."""
    np.savez(folder / f"{name}.npz", **samples)  # type: ignore[arg-type]
    path = folder / f"{name}.yaml"
    path.write_text(RECIPE.format(onnx=onnx, samples=f"{name}.npz", out=folder / "out" / name, more=more),
                    encoding="utf-8")
    return path

"""The recipe's sections: each key, its default, and what it means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from edgeforge import targets
from edgeforge.errors import RecipeError

_STEPS, _LEAST_CONTEXT, _FLOAT16, _SIX = 3, 32, 16, 6


def _written(path: Any) -> Any:
    """An empty path would be the recipe's own folder."""
    if isinstance(path, str) and not path.strip():
        raise ValueError("is empty; it takes a path")
    return path


Location = Annotated[Path, BeforeValidator(_written)]
"""A path, relative to the recipe's own folder; `~` is the home folder."""


Decibels = Annotated[float, Field(le=150)]
"""A gate's least SQNR. Two float32 computations of one value agree to 140 dB or so: more can never pass."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Target(Section):
    """Where the bundle runs, and the graph widths that it is compiled for."""

    chip: str = Field(json_schema_extra={"enum": list(targets.CHIPS)})
    """The chip that runs it."""
    context: int = Field(1024, ge=2, le=32768)
    """CL: most tokens that prompt and answer hold together."""
    prefill: int = Field(128, ge=2, le=2048)
    """AR of the prompt graph; the decode graph is AR-1."""

    @field_validator("chip")
    @classmethod
    def _known_chip(cls, name: str) -> str:
        try:
            return targets.chip(name).name
        except RecipeError as error:
            raise ValueError(f"{error.message.removeprefix('target.chip: ')} ({error.hint})") from None

    @property
    def least_context(self) -> int:
        """The gates read two chunks of prefill and a few single steps."""
        return max(2 * self.prefill + _STEPS, _LEAST_CONTEXT)

    @property
    def most_prefill(self) -> int:
        """The widest prompt graph that context is long enough for; below 2, none is."""
        return (self.context - _STEPS) // 2 if self.context >= _LEAST_CONTEXT else 0


class Calibrate(Section):
    """The text that statistics come from: pieces of `tokens` tokens, of a file or the built-in mix, and of what the
    model writes itself."""

    text: Location | None = None
    """A UTF-8 text file, or .jsonl with {"text"} or {"messages"} a line; without one, prose, code and chat."""
    windows: int = Field(default=16, ge=1, le=4096)
    """How many pieces of that text are read; unset, 64 for `quality: best`: its searches fit more than 16 can tell."""
    samples: int = Field(default=8, ge=0, le=4096)
    """How many pieces more the model writes itself: stories, letters, science..., half of them not in English."""
    tokens: int = Field(default=512, ge=8, le=32768)
    """How long each piece is."""


class Budget(Section):
    """What 4-bit weights may grow to, or have to reach: where 8 bits mend the most for each bit, they are taken."""

    bits_per_weight: float | None = Field(None, gt=4, le=8)
    """Bits that a weight takes on average, its share of scales counted; the head's weight, which `head` decides, is
    not."""
    kl: float | None = Field(None, gt=0)
    """KL divergence to reach, nats per token, with as few bits as a handful of trial fits finds."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Budget:
        if (self.bits_per_weight is None) == (self.kl is None):
            raise ValueError("takes either bits_per_weight or kl")
        return self


class Candidates(Section):
    """The steps that `scales: search` tries for each channel or block: shares, evenly spaced, of the smallest step that
    clips nothing."""

    steps: int = Field(15, ge=2, le=256)
    """How many."""
    least: float = Field(0.4, gt=0, le=2)
    """The smallest share; still smaller ones are hardly ever best."""
    most: float = Field(1.1, gt=0, le=2)
    """The largest."""
    floats: int = Field(8, ge=2, le=256)
    """With `block`: how many floats a channel tries beside its blocks' whole numbers, from 0.75 to 1.1 of what suits
    its largest block."""

    @model_validator(mode="after")
    def _spread(self) -> Candidates:
        if self.least >= self.most:
            raise ValueError(f"least {self.least:g} has to lie below most {self.most:g}")
        return self


class Quantize(Section):
    """Bits by role, how weights are rounded, and the exact rewrites that come first."""

    quality: Literal["fast", "balanced", "best"] = "balanced"
    """How much work the search for scales and codes may be (quantize/quality.py): `best` is `balanced` on more text
    (calibrate.windows); the keys `scales` to `reconstruct` replace what it says."""
    weights: Literal[4, 6, 8, 16] = 8
    """Bits of a weight; 6 only with `palette`. What no search fits (grouped and transposed convolutions, a weight that
    two nodes read) takes 8 at least, unless `exceptions` names it, and is reported."""
    block: Literal[16, 32, 64, 128] | None = None
    """Inputs that share a scale, for 4-bit weights: a whole number 1..16 times the output channel's (LPBQ), or a
    float16 where float16 flows, which alone takes 128; unset: one scale an output channel. A weight whose inputs it
    does not divide keeps one scale a channel, and is reported."""
    palette: Literal[4, 8, 16, 32] | None = None
    """Outputs that share a table of 2^bits float16 numbers, whose entries are all that their weights of 4 or 6 bits can
    be (LUT4, LUT6); only Apple's chips read such tables. Where it does not divide a weight's outputs, the largest
    divisor of both is taken."""
    head: Literal[4, 6, 8, 16] = 8
    """Bits of the weight that makes the logits; where float16 flows 16, unless said, where `weights` has 16."""
    budget: Budget | None = None
    """Gives some of the 4-bit weights 8 bits; which, stands in `precision.json`, and as a recipe without a budget in
    `recipe.mixed.yaml`."""
    encodings: Location | None = None
    """A file of AIMET encodings (1.0.0, 2.0.0, 2.1.0) for the graph that is quantized (model.onnx of the stage
    transform; of optimize, for a plain graph): what it names lies on its grids, and such a weight's codes are the
    nearest, whatever the other keys here say. What it does not name gets ours."""
    exceptions: dict[str, Literal[4, 6, 8, 16]] = {}
    """Bits of single weights by their names (`model.layers.*.mlp.down_proj.weight: 8`); the longest pattern
    that matches counts. A budget leaves them alone."""
    activations: Literal[8, 16] = 16
    """Bits of what flows between operators. For GPUs and Apple's chips that is float16, and 8 are of what 8-bit weights
    read, with one scale for all tokens."""
    eight_bits: targets.EightBits = "int8"
    """What 8 bits of a weight, and of what it reads, are: whole numbers, or `fp8` (E4M3: 4 bits of exponent, 3 of
    mantissa), for GPUs from Ada (compute capability 8.9) on: `{weights: 8, activations: 8, eight_bits: fp8}`."""
    kv: Literal[8, 16] = 8
    """Bits of the KV cache. Its codes are unsigned with zero in the middle: the grid that signed ones would have, which
    HTP's compiler does not finish a graph with. 16 takes twice the memory of 8."""
    ranges: Literal["minmax", "percentile", "mse"] = "minmax"
    """Where 8-bit grids of caches and embedding tables end (quantize/clip.py): at the largest value seen and 20 % more,
    where one value in 10,000 lies outside, or where rounding and clipping together lose the least."""
    embedding: Literal[8, 16] = 16
    """Bits of the embedding table; on Apple's chips 8 have one step a row."""
    scales: Literal["search", "minmax"] | None = None
    """Where steps come from: `search` minimises the error of a layer's outputs (SeqMSE, from Gram matrices)."""
    candidates: Candidates = Candidates()
    rounding: Literal["gptq", "nearest"] | None = None
    """`gptq` lets later channels mend the errors of earlier ones (quantize/weights/gptq.py)."""
    refine: int | None = Field(None, ge=0, le=16)
    """Times that steps and codes are improved in turn after rounding (quantize/weights/refine.py)."""
    correction: float | None = Field(None, ge=0, le=1)
    """Share of what earlier layers lost that a layer's weight makes up for (quantize/weights/target.py)."""
    importance: bool | None = None
    """Whether tokens count by what they mean to the model's answer (quantize/importance.py)."""
    reconstruct: bool | None = None
    """Whether the steps and codes of each block of layers are tuned together, by gradient (quantize/reconstruct.py)."""
    transforms: tuple[targets.Transform, ...] = targets.HTP.transforms
    """`rotate` spreads the residual stream's outliers, `equalize_kv` lets every cache channel fill its tensor's
    grid, `split_outliers` writes an MLP's massive channel as several small ones, `scale_channels` lets weights that
    round to nearest grow where they read much (AWQ). They are applied in this order, whatever the order here. Unset,
    `rotate` where float16 flows (and `split_outliers` beside int8 activations), and none where all weights have 16
    bits."""

    @model_validator(mode="after")
    def _blocks_of_four_bits(self) -> Quantize:
        if self.block is not None and self.weights != 4:
            raise ValueError(f"block {self.block} is for 4-bit weights, and these have {self.weights}: set weights to "
                             "4, or leave block out")
        return self

    @model_validator(mode="after")
    def _tables_of_few_bits(self) -> Quantize:
        if self.palette is None:
            return self
        if min(self.weights, self.head, *self.exceptions.values()) > _SIX:
            raise ValueError(f"palette {self.palette} is for weights of 4 or 6 bits, and none has them: set weights to "
                             "4 or 6, or leave palette out")
        if self.block is not None:
            raise ValueError(f"palette {self.palette} gives outputs tables and block {self.block} gives inputs steps: "
                             "leave one of them out")
        if self.reconstruct:
            raise ValueError("reconstruct moves the steps of a block's weights together, and tables have none: leave "
                             "palette or reconstruct out")
        if self.budget is not None:
            raise ValueError("budget raises 4-bit weights on one scale a channel to 8 bits: with palette say in "
                             "exceptions which weights get 6 or 8 bits")
        return self

    @model_validator(mode="after")
    def _candidates_of_a_search(self) -> Quantize:
        if self.scales == "minmax" and self.candidates != Candidates():
            raise ValueError("candidates are what scales: search tries, and scales is minmax: leave one of them out")
        return self

    @model_validator(mode="after")
    def _budget_of_four_bits(self) -> Quantize:
        if self.budget is not None and self.weights != 4:
            raise ValueError(f"budget chooses between 4 and 8 bits, and weights has {self.weights}: set weights to 4, "
                             "or leave budget out")
        return self

    @model_validator(mode="after")
    def _grids_that_stay(self) -> Quantize:
        if self.encodings is not None and self.reconstruct:
            raise ValueError("reconstruct moves the steps of a block's weights together, and encodings settles some: "
                             "leave one of them out")
        return self

    @model_validator(mode="after")
    def _fp8_of_eight_bits(self) -> Quantize:
        if not self.fp8:
            return self
        if 8 not in (self.weights, self.head, *self.exceptions.values()):
            raise ValueError("eight_bits is fp8, and no weight has 8 bits: set weights or head to 8, or leave "
                             "eight_bits out")
        if self.reconstruct:
            raise ValueError("reconstruct moves codes that are whole numbers, and eight_bits is fp8: leave one of them "
                             "out")
        if self.budget is not None:
            raise ValueError("budget weighs 4 bits against int8, and eight_bits is fp8: leave one of them out")
        return self

    @property
    def fp8(self) -> bool:
        """Are 8 bits floats?"""
        return self.eight_bits == "fp8"

    @property
    def rounded(self) -> bool:
        """Has any weight fewer than 16 bits?"""
        return min(self.weights, self.head, *self.exceptions.values(), _FLOAT16) < _FLOAT16

    @property
    def untied(self) -> bool:
        """Are embedding and head stored apart, where the model has one table for both and float16 flows?"""
        return self.rounded or self.embedding < _FLOAT16

    @property
    def six_bits(self) -> tuple[str, ...]:
        """The keys that give weights 6 bits, which only entries of tables have."""
        asked = {"weights": (self.weights,), "head": (self.head,), "exceptions": self.exceptions.values()}
        return tuple(key for key, bits in asked.items() if _SIX in bits)

    def giver(self, bits: int) -> str:
        """The key that gives weights so many bits; empty when none does."""
        if bits in self.exceptions.values():
            return "exceptions"
        rest = () if "*" in self.exceptions else ("weights", "head")
        return next((key for key in rest if getattr(self, key) == bits), "")

    @field_validator("transforms")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if twice := [n for i, n in enumerate(names) if n in names[:i]]:
            raise ValueError(f"{twice[0]!r} is there twice; each is applied once")
        return names


class Split(Section):
    """How the graph is cut into parts."""

    part_bytes: int = Field(1 << 30, ge=1 << 10)
    """Most weight bytes in one decoder part."""


class Apple(Section):
    """What is made for Apple's chips, and for which of their systems."""

    system: Literal["ios17", "ios18", "ios26", "ios27"] = "ios18"
    """The oldest system that runs it: iOS 18 with macOS 15, iOS 26 with macOS 26... Later ones run it, too."""
    format: Literal["mlpackage", "aimodel", "both"] = "mlpackage"
    """Core ML's package, Core AI's asset (iOS 27; executed here by Apple's own runtime), or each beside the other."""
    kv: Literal["io", "state"] = "io"
    """Who keeps the cache: the app, which hands it in and writes what comes out (`io`), or the model (`state`). The
    Neural Engine is known to refuse states of some sizes."""
    package_bytes: int | None = Field(None, ge=1 << 10)
    """Most weight bytes in one package; unset: what the chip's system loads, 1 GiB on iOS and 2 GiB on macOS. A larger
    model becomes several packages, run in order."""


class Compile(Section):
    """Limits for the vendor's compiler."""

    timeout_s: float = Field(1800, gt=0)
    """Seconds until the compiler of one part is stopped."""
    memory_mb: int | None = Field(None, ge=64)
    """Most memory of one compiler process, MiB; unset: what is free, shared by those that run at once."""


class Gates(Section):
    """What a stage may lose before the build stops. dB of logits, nats per token, ratios. Limits for 4-bit weights hold
    where more than a twentieth of all weights have 4 bits."""

    windows: int = Field(2, ge=1)
    """Evaluation windows of `context` tokens each, disjoint from calibration text."""
    adapt_db: Decibels = 60
    """The exported graph against HuggingFace, at least."""
    optimize_db: Decibels = 55
    """The optimised graph against HuggingFace (a plain graph: against its file), at least."""
    transform_db: Decibels = 100
    """The transformed graph against HuggingFace, at least. All that is done is exact: float32 leaves 107 dB (a tiny
    random model) to 139, SmolLM2, Qwen2.5-0.5B and Gemma-3-270M 114 to 122."""
    quantize_db: Decibels | None = None
    """Logits of the quantized model against HuggingFace, at least; unset: 30, and no limit for 4-bit weights, whose
    raw dB say nothing about text."""
    quantize_centred_db: Decibels | None = None
    """The same after each token's mean is taken away, which softmax doesn't see; unset: 8 for 4-bit weights."""
    quantize_kl: float | None = Field(None, gt=0)
    """KL divergence of the quantized model, at most; unset: 0.02, and 0.3 for 4-bit weights."""
    quantize_ppl: float | None = Field(None, ge=1)
    """Perplexity of the quantized model over the float one's, at most; unset: 1.02, and 1.25 for 4-bit weights."""
    quantize_flips: float | None = Field(None, gt=0, le=1)
    """Share of tokens whose most likely successor changes, at most; unset: 0.35 for 4-bit weights."""
    sha_db: Decibels = 60
    """One attention a head against the whole, at least."""
    split_db: Decibels = 60
    """Quantized parts against the whole, decode, at least."""
    wide_db: Decibels = 15
    """Prefill of a deep part against another arithmetic: the same codes but for roundings that grow with depth."""
    emulator_db: Decibels = 40
    """The emulator against the CPU, decode, at least."""
    emitted_db: Decibels = 50
    """Where float16 flows: what is emitted (for a GPU's builder, or the package itself), run on the CPU, against the
    float graph of the same weights, at least."""
    emitted_codes_db: Decibels = 15
    """The same with 8-bit activations, where a value that moves by a hair may round to the code beside, a whole step
    off, more of them with depth (SmolLM2, float16: int8 27 on a GPU and 18 in a package, fp8 19)."""
    rounded_db: Decibels = 45
    """The same for an Apple package with every op's output rounded to float16, and for Core AI in float16, at least."""
    shared_bytes: float = Field(1.05, ge=1)
    """Weights of both graphs in one binary over those of the larger graph, at most; of an engine, over its model's.
    For Apple's chips 1.03, unless said."""

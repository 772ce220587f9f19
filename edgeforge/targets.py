"""The capability table: what each chip can do, and the graph shape that each kind of target wants."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from edgeforge.errors import RecipeError

Flow = Literal["codes", "float16"]
EightBits = Literal["int8", "fp8"]
Transform = Literal["rotate", "equalize_kv", "split_outliers", "scale_channels"]


@dataclass(frozen=True)
class Profile:
    """The shape of graph that a target family wants, and what its numbers are; adapt builds what it says, and a recipe
    is held against it (formats.py).

    linear: how a Linear is written. transposed_keys: key cache [kv, 1, head_dim, T] instead of
    [1, kv, T, head_dim]. split_heads: one small attention a head (MHA -> SHA). lower_rope: rotary as
    arithmetic, not as one op. masked: what the mask adds to a forbidden score; bounded, because it has to
    live on the scores' integer grid, or within float16. least_multiplier: smallest input scale x weight scale / output
    scale of a product that the hardware can multiply by. signed_operands: 16-bit codes that a product of activations
    reads second have to be signed (graph/operand.py). flow: what lies between operators, codes on integer grids or
    float16. activation_bits: what a recipe may ask for as `quantize.activations`; eight_bits: what 8 of them may be.
    blocks: inputs that may share a step of a 4-bit weight; where codes flow it is a whole number of its channel's
    (LPBQ), else a float16 of its own. whole_steps: why there are none. tables: bits of weights that may be entries of a
    table (`quantize.palette`). embeddings: bits of the table whose rows tokens look up. whole_activations: why there
    are no activations of 8 bits; elsewhere: what a recipe may say to have them. binary: what one compiled graph of all
    layers is called. builder: memory that making it takes, bytes for each byte of weights and for each weight.
    transforms: what a recipe applies that does not say.
    """

    name: str
    linear: Literal["conv1x1", "matmul"]
    transposed_keys: bool
    split_heads: bool
    lower_rope: bool
    masked: float
    least_multiplier: float = 0.0
    signed_operands: bool = False
    flow: Flow = "codes"
    activation_bits: tuple[int, ...] = (16,)
    eight_bits: tuple[EightBits, ...] = ("int8",)
    blocks: tuple[int, ...] = (16, 32, 64)
    whole_steps: str = ""
    embeddings: tuple[int, ...] = (8, 16)
    whole_activations: str = ""
    elsewhere: str = ""
    tables: tuple[int, ...] = ()
    binary: str = ""
    builder: tuple[int, int] = (0, 0)
    transforms: tuple[Transform, ...] = ("rotate", "equalize_kv", "split_outliers")

    @property
    def key_axis(self) -> int:
        """Token axis of past_key_*."""
        return 3 if self.transposed_keys else 2

    @property
    def value_axis(self) -> int:
        """Token axis of past_value_*."""
        return 2


HTP = Profile("htp", linear="conv1x1", transposed_keys=True, split_heads=True, lower_rope=True, masked=-50.0,
              least_multiplier=2.0**-23, signed_operands=True)
"""its multipliers end at 2^-24: below, a channel of 6e-8 of the output's range saturates (tried, on the emulator)"""
PLAIN = Profile("plain", linear="matmul", transposed_keys=False, split_heads=False, lower_rope=False, masked=-50.0)
TRT = Profile("trt", linear="matmul", transposed_keys=False, split_heads=False, lower_rope=False, masked=-10000.0,
              flow="float16", activation_bits=(8, 16), eight_bits=("int8", "fp8"), blocks=(16, 32, 64, 128),
              embeddings=(16,), transforms=("rotate",), binary="engine", builder=(7, 0))
"""its builder took 3.4 GB for 485 MB of weights; scores may lie further apart than 50, and here no grid has to hold the
mask; half of float16's range is left"""
ANE = Profile("ane", linear="conv1x1", transposed_keys=True, split_heads=True, lower_rope=True, masked=-40000.0,
              flow="float16", activation_bits=(8, 16), blocks=(), tables=(4, 6), whole_steps="Core ML runs products of "
              "blocks on the CPU, not on the Neural Engine", transforms=("rotate",), binary="package",
              builder=(0, 9))
"""its weights have one step a channel: Core ML says "ANE only support per-cout/per-tensor quantization" and runs blocks
on the CPU (coremltools issue 2510); the mask is what Apple's own models add, within float16. Executing a package took
2.1 GB for 163 million weights, emitting it less"""
METAL = replace(ANE, name="metal", activation_bits=(16,), blocks=(16, 32, 64), whole_steps="",
                whole_activations="int8 times int8 is the Neural Engine's",
                elsewhere="leave -gpu out of target.chip: the Neural Engine of the same chip takes 8")
"""the GPU of a Mac reads the same graph; Apple's guide to weights' formats sends blocks there, and int8 activations to
the Neural Engine"""
PROFILES = {p.name: p for p in (HTP, PLAIN, TRT, ANE, METAL)}


@dataclass(frozen=True)
class Chip:
    """One chip of any maker, by the name that a recipe gives it. part: the maker's own name for it. sections: of a
    recipe, that chips of this maker alone read."""

    name: str
    part: str
    backend: ClassVar[str]
    profile: ClassVar[Profile]
    sections: ClassVar[tuple[str, ...]] = ()
    rounded: ClassVar[bool] = False
    """what is compiled for it is also executed here with float16 roundings (`gates.rounded_db`)"""
    shared_bytes: ClassVar[float | None] = None
    """`gates.shared_bytes`, unless a recipe says it; None: what the recipe's section says"""

    @property
    def graph_bytes(self) -> int | None:
        """The most that one compiled graph may allocate; None: no limit is known."""
        return None


@dataclass(frozen=True)
class Hexagon:
    """What one generation of Qualcomm's HTP takes; every chip of that generation takes the same.

    weight_bits: of weights beside 16-bit activations. kv_bits: of a cache, whose 16 bits the products have to take as
    signed second operands. sharing: prefill and decode in one binary over one
    set of weights. graph_bytes: the most that one graph may allocate; the compiler refuses more.
    """

    arch: int
    weight_bits: tuple[int, ...]
    kv_bits: tuple[int, ...]
    block_weights: bool
    sharing: bool
    graph_bytes: int


_OLD, _NEW = 2 << 30, 3584 << 20
"""as the compiler words them: "limit is 2097152 KB" on v69, "limit is 3670016 KB" on v73 (public issue threads)"""

HEXAGON = {h.arch: h for h in (
    Hexagon(68, (8, 16), (8,), block_weights=False, sharing=False, graph_bytes=_OLD),
    Hexagon(69, (8, 16), (8,), block_weights=False, sharing=False, graph_bytes=_OLD),
    Hexagon(73, (4, 8, 16), (8, 16), block_weights=True, sharing=True, graph_bytes=_NEW),
    Hexagon(75, (4, 8, 16), (8, 16), block_weights=True, sharing=True, graph_bytes=_NEW),
    Hexagon(79, (4, 8, 16), (8, 16), block_weights=True, sharing=True, graph_bytes=_NEW),
    Hexagon(81, (4, 8, 16), (8, 16), block_weights=True, sharing=True, graph_bytes=_NEW),
)}


@dataclass(frozen=True)
class Snapdragon(Chip):
    """One of Qualcomm's chips.

    part: Qualcomm's part number, under which the sources list it. soc_model: its Qnn_SocModel_t, the number
    that the compiler takes. dsp_arch: read back from a binary compiled for soc_model (tests/test_targets.py
    does it again). vtcm_mb: the tightly coupled memory that a graph may plan with; the compiler believes any
    number, and a binary planned for more than the chip has does not load.
    """

    soc_model: int
    dsp_arch: int
    vtcm_mb: int
    backend: ClassVar[str] = "qnn"
    profile: ClassVar[Profile] = HTP

    @property
    def hexagon(self) -> Hexagon:
        return HEXAGON[self.dsp_arch]

    @property
    def graph_bytes(self) -> int:
        """The most that one compiled graph may allocate."""
        return self.hexagon.graph_bytes

    @property
    def weight_sharing(self) -> bool:
        """Prefill and decode in one binary over one set of weights: Hexagon v73 and later."""
        return self.hexagon.sharing


_UNSTATED = 4
"""VTCM where no public table states it: the least that any table states for any HTP"""

# Numbers: Qnn_SocModel_t (QnnTypes.h of the public QAIRT SDK; its documentation's list of supported devices).
# Part numbers behind the names: Qualcomm's product briefs. VTCM: ExecuTorch's _soc_info_table
# (pytorch/executorch, backends/qualcomm/serialization/qc_schema.py) and LiteRT's kSocInfos
# (google-ai-edge/LiteRT, litert/vendors/qualcomm/core/schema/soc_table.cc), both Qualcomm's own.
# The 10-core Snapdragon X Plus is SC8380XP too; the 8-core one (SC8340XP) has no number of its own: left out.
SNAPDRAGONS = {chip.name: chip for chip in (
    Snapdragon("snapdragon-888", "SM8350", 30, 68, 4),
    Snapdragon("snapdragon-8-gen-1", "SM8450", 36, 69, 8),
    Snapdragon("snapdragon-8-plus-gen-1", "SM8475", 42, 69, 8),
    Snapdragon("snapdragon-8-gen-2", "SM8550", 43, 73, 8),
    Snapdragon("snapdragon-8-gen-3", "SM8650", 57, 75, 8),
    Snapdragon("snapdragon-8s-gen-3", "SM8635", 68, 73, _UNSTATED),
    Snapdragon("snapdragon-8s-gen-4", "SM8735", 85, 73, _UNSTATED),
    Snapdragon("snapdragon-8-gen-5", "SM8845", 97, 81, 8),
    Snapdragon("snapdragon-8-elite", "SM8750", 69, 79, 8),
    Snapdragon("snapdragon-8-elite-gen-5", "SM8850", 87, 81, 8),
    Snapdragon("snapdragon-7-gen-1", "SM7450", 41, 69, _UNSTATED),
    Snapdragon("snapdragon-7-gen-3", "SM7550", 64, 73, _UNSTATED),
    Snapdragon("snapdragon-7-gen-4", "SM7750", 86, 73, _UNSTATED),
    Snapdragon("snapdragon-7-plus-gen-2", "SM7475", 54, 69, _UNSTATED),
    Snapdragon("snapdragon-7-plus-gen-3", "SM7675", 70, 73, _UNSTATED),
    Snapdragon("snapdragon-7s-gen-3", "SM7635", 73, 73, _UNSTATED),
    Snapdragon("snapdragon-8cx-gen-3", "SC8280XP", 37, 68, _UNSTATED),
    Snapdragon("snapdragon-x-elite", "SC8380XP", 60, 73, 8),
    Snapdragon("snapdragon-x-plus-10-core", "SC8380XP", 60, 73, 8),
    Snapdragon("snapdragon-x2-elite", "SC8480XP", 88, 81, _UNSTATED),
    Snapdragon("qcm6490", "QCM6490", 93, 68, 2),
    Snapdragon("qcs8275", "QCS8300", 82, 75, 8),
    Snapdragon("qcs8300", "QCS8300", 82, 75, 8),
    Snapdragon("qcs8550", "QCS8550", 66, 73, _UNSTATED),
    Snapdragon("qcs9075", "QCS9100", 77, 73, 8),
    Snapdragon("qcs9100", "QCS9100", 77, 73, 8),
    Snapdragon("sa8255p", "SA8255", 52, 73, 8),
    Snapdragon("sa8295p", "SA8295", 39, 68, 8),
)}


@dataclass(frozen=True)
class Cuda:
    """What one compute capability takes, as TensorRT for RTX 1.7 does.

    sm: 89 for 8.9. cross: the builder makes engines for it on any machine, and what is said here was tried by building
    some; else only where such a GPU is, and what is said here is what its neighbours take.
    """

    sm: int
    cross: bool

    @property
    def int4(self) -> bool:
        """4-bit weights are built for it; before, the builder ends with "model contains HW-specific datatypes"."""
        return self.sm >= 80

    @property
    def int8_alone(self) -> bool:
        """8-bit weights stay so up to any product with float16. Before, prefill unpacks the one behind attention first
        (o_proj); where codes multiply codes, none."""
        return self.sm >= 80

    @property
    def fp8(self) -> bool:
        """E4M3 has a product of its own."""
        return self.sm >= 89


CUDA = {sm: Cuda(sm, sm in (75, 80, 86, 89, 120, 121)) for sm in (75, 80, 86, 87, 89, 90, 110, 120, 121)}


@dataclass(frozen=True)
class Gpu(Chip):
    """One of NVIDIA's GPUs, or several that one engine serves. sms: compute capability of each."""

    sms: tuple[int, ...]
    backend: ClassVar[str] = "tensorrt"
    profile: ClassVar[Profile] = TRT

    @property
    def cross(self) -> bool:
        """Are engines for it made on any machine, or only where it is?"""
        return all(CUDA[sm].cross for sm in self.sms)

    @property
    def int4(self) -> bool:
        return all(CUDA[sm].int4 for sm in self.sms)

    @property
    def int8_alone(self) -> bool:
        return all(CUDA[sm].int8_alone for sm in self.sms)

    @property
    def fp8(self) -> bool:
        return all(CUDA[sm].fp8 for sm in self.sms)


def _series(prefix: str, part: str, sm: int, *models: str) -> Iterator[Gpu]:
    for model in models:
        yield Gpu(f"{prefix}-{model.lower().replace(' ', '-')}", f"{part} {model}", (sm,))


# Compute capabilities: NVIDIA's page "CUDA GPU Compute Capability". Thor's is 11.0 since CUDA 13 (10.1 before).
GPUS = {gpu.name: gpu for gpu in (
    Gpu("rtx-any", "any RTX GPU since Ampere", (80, 86, 89, 120, 121)),
    *_series("geforce-rtx", "GeForce RTX", 75, "2060", "2070", "2080", "2080 Ti"),
    *_series("geforce-rtx", "GeForce RTX", 86, "3050", "3060", "3060 Ti", "3070", "3070 Ti", "3080", "3080 Ti", "3090",
             "3090 Ti"),
    *_series("geforce-rtx", "GeForce RTX", 89, "4050", "4060", "4060 Ti", "4070", "4070 Ti", "4080", "4090"),
    *_series("geforce-rtx", "GeForce RTX", 120, "5050", "5060", "5060 Ti", "5070", "5070 Ti", "5080", "5090"),
    Gpu("rtx-a6000", "RTX A6000", (86,)), Gpu("rtx-6000-ada", "RTX 6000 Ada", (89,)),
    Gpu("rtx-pro-6000-blackwell", "RTX PRO 6000 Blackwell", (120,)),
    Gpu("a100", "A100", (80,)), Gpu("a10", "A10", (86,)), Gpu("a40", "A40", (86,)), Gpu("l4", "L4", (89,)),
    Gpu("l40", "L40", (89,)), Gpu("l40s", "L40S", (89,)), Gpu("h100", "H100", (90,)),
    Gpu("dgx-spark", "DGX Spark (GB10)", (121,)),
    Gpu("jetson-orin-nano", "Jetson Orin Nano", (87,)), Gpu("jetson-orin-nx", "Jetson Orin NX", (87,)),
    Gpu("jetson-agx-orin", "Jetson AGX Orin", (87,)), Gpu("jetson-agx-thor", "Jetson AGX Thor", (110,)),
)}

@dataclass(frozen=True)
class AppleSystem:
    """What Core ML takes from one release of Apple's systems on; iOS and the macOS of the same year are alike.

    name: as a recipe says it. macos: its sibling. specification: of a package (coremltools' `specification_version`).
    functions: several in one package. four_bits: blockwise constants, of 4 bits too, and tables of groups of channels.
    state: caches that the model keeps (MLState). assets: Core AI's .aimodel.
    """

    name: str
    macos: str
    specification: int
    functions: bool
    four_bits: bool
    state: bool
    assets: bool = False

    @property
    def words(self) -> str:
        return f"iOS {self.name.removeprefix('ios')}, {self.macos}"


# coremltools 9.0: target.iOS17 to iOS26, and the opsets that its ops are registered for. Core AI: its minimum_os.
APPLE_SYSTEMS = {system.name: system for system in (
    AppleSystem("ios17", "macOS 14", 8, functions=False, four_bits=False, state=False),
    AppleSystem("ios18", "macOS 15", 9, functions=True, four_bits=True, state=True),
    AppleSystem("ios26", "macOS 26", 10, functions=True, four_bits=True, state=True),
    AppleSystem("ios27", "macOS 27", 10, functions=True, four_bits=True, state=True, assets=True),
)}


@dataclass(frozen=True)
class Apple(Chip):
    """One of Apple's chips with a Neural Engine. package_bytes: weights that one file may hold there."""

    package_bytes: int
    backend: ClassVar[str] = "coreml"
    profile: ClassVar[Profile] = ANE
    rounded: ClassVar[bool] = True
    shared_bytes: ClassVar[float | None] = 1.03
    sections: ClassVar[tuple[str, ...]] = ("apple",)
    unit: ClassVar[str] = "ane"

    @property
    def int8(self) -> bool:
        """Is int8 times int8 faster than float16? From A17 Pro and M4 on (Apple's guide to quantization)."""
        return self.part in ("A17 Pro", "M4", "M5") or self.part.startswith(("A18", "A19"))


@dataclass(frozen=True)
class AppleGpu(Apple):
    """The GPU of a Mac, by itself."""

    profile: ClassVar[Profile] = METAL
    unit: ClassVar[str] = "gpu"


_PHONE, _MAC = 1 << 30, 2 << 30
"""a file of a model on iOS and on macOS, as ANEMLL cuts and Apple's coreai-models advise; beyond, loading fails"""

APPLES = {apple.name: apple for apple in (
    Apple("apple-a14", "A14 Bionic", _PHONE), Apple("apple-a15", "A15 Bionic", _PHONE),
    Apple("apple-a16", "A16 Bionic", _PHONE), Apple("apple-a17-pro", "A17 Pro", _PHONE),
    Apple("apple-a18", "A18", _PHONE), Apple("apple-a18-pro", "A18 Pro", _PHONE), Apple("apple-a19", "A19", _PHONE),
    Apple("apple-a19-pro", "A19 Pro", _PHONE), Apple("apple-m1", "M1", _MAC), Apple("apple-m2", "M2", _MAC),
    Apple("apple-m3", "M3", _MAC), Apple("apple-m4", "M4", _MAC), Apple("apple-m5", "M5", _MAC),
)}

APPLES |= {gpu.name: gpu for gpu in [AppleGpu(f"{mac.name}-gpu", mac.part, mac.package_bytes) for mac in APPLES.values()
                                     if mac.part.startswith("M")]}

CHIPS: dict[str, Chip] = {**SNAPDRAGONS, **GPUS, **APPLES}
LISTED = "`edgeforge targets` lists every chip"
"""where a person finds the names"""


def chip(name: str) -> Chip:
    """The chip of that name; RecipeError names the nearest one we know."""
    found = CHIPS.get(name)
    if found is not None:
        return found
    spelled = name.lower().replace(" ", "-").replace("_", "-")
    near = [n for n in CHIPS if n.endswith(f"-{spelled}")] or difflib.get_close_matches(spelled, CHIPS, 1)
    raise RecipeError(f"target.chip: no chip {name!r}",
                      f"did you mean {near[0]!r}? {LISTED}" if near else LISTED)

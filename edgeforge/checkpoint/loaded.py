"""What transformers only warns about after loading: refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from edgeforge.checkpoint.opened import CONFIG, Checkpoint
from edgeforge.checkpoint.words import names
from edgeforge.errors import CheckpointError


def check(checkpoint: Checkpoint, model: Any, info: Mapping[str, Any]) -> None:
    """Every tensor used, every parameter given, all of them finite, tied as the config says.

    Args:
        info: what from_pretrained reports with output_loading_info; `names`, when it has them, are the
            checkpoint's tensors.

    Raises:
        CheckpointError: anything else.
    """
    _check_names(checkpoint, type(model).__name__, info)
    _check_tie(checkpoint, model)
    _check_finite(checkpoint, model)


def _check_names(checkpoint: Checkpoint, model: str, info: Mapping[str, Any]) -> None:
    """Refuse tensors that transformers made up, left out or reshaped."""
    where, held = checkpoint.source, info.get("names") or set(checkpoint.tensors)
    missing, unexpected = set(info["missing_keys"]), set(info["unexpected_keys"])
    if held <= unexpected:
        raise CheckpointError(
            f"none of the {len(held)} tensors in {where} fits {model}: "
            f"the checkpoint holds {names(held, 2)}; the model wants {names(missing, 2)}",
            _prefix_hint(held, missing) or _other(checkpoint, f"is {CONFIG} from another model?"),
        )
    if mismatched := sorted(info["mismatched_keys"]):
        raise other_shapes(checkpoint, [(n, tuple(have), tuple(want)) for n, have, want in mismatched])
    problems = []
    if missing:
        problems.append(f"{len(missing)} parameters of {model} are not in it: {names(missing)}")
    if unexpected:
        problems.append(f"{len(unexpected)} of its tensors have no place in {model}: {names(unexpected)}")
    if problems:
        untied_head = missing == {"lm_head.weight"} and not unexpected
        raise CheckpointError(
            f"{where} does not match its {checkpoint.config_name}: " + "; ".join(problems),
            f"{CONFIG} does not say `tie_word_embeddings: true`: set it if embedding and head are one tensor"
            if untied_head
            else _other(checkpoint, "weights and config must come from one and the same model"),
        )


def no_place(checkpoint: Checkpoint, model: str, extra: Collection[str]) -> CheckpointError:
    """The refusal of tensors that the model does not have."""
    return CheckpointError(f"{len(extra)} tensors in {checkpoint.source} have no place in {model}: {names(extra)}",
                           _other(checkpoint, "weights and config must come from one and the same model"))


def _other(checkpoint: Checkpoint, hint: str) -> str:
    """A GGUF file holds both: nothing can have been mixed up beside it."""
    return "download it again, or convert the model again" if checkpoint.format == "gguf" else hint


def other_shapes(checkpoint: Checkpoint, found: Iterable[tuple[str, tuple[int, ...], tuple[int, ...]]]
                 ) -> CheckpointError:
    """The refusal of tensors as (name, shape in the checkpoint, shape by the config)."""
    shapes = [f"{n} is {list(have)}, the config asks for {list(want)}" for n, have, want in found]
    return CheckpointError(
        f"{len(shapes)} tensors in {checkpoint.source} have another shape than {checkpoint.config_name} says: "
        f"{names(shapes)}",
        _other(checkpoint, f"is {CONFIG} from another size of the model, or the vocabulary resized without it?"),
    )


def _check_tie(checkpoint: Checkpoint, model: Any) -> None:
    """Two different tensors under a config that says tied: each reader would take another one."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = model.config.get_text_config().tie_word_embeddings
    if tied and head is not None and head.weight is not embedding.weight:
        raise CheckpointError(
            f"{checkpoint.config_file} says that embedding and head are tied, but the checkpoint holds "
            "a different tensor for each",
            "set `tie_word_embeddings: false` if the head was trained apart, else drop the head's tensor",
        )


def _check_finite(checkpoint: Checkpoint, model: Any) -> None:
    """NaN or infinity in a weight: every answer would be NaN. Least and greatest tell, without a copy."""
    import torch

    def broken(tensor: Any) -> bool:
        return tensor.numel() > 0 and not all(torch.isfinite(bound) for bound in torch.aminmax(tensor))

    if wrong := [n for n, p in model.named_parameters() if broken(p.detach())]:
        raise CheckpointError(
            f"{checkpoint.source} holds NaN or infinity (as float32) in {names(wrong)}",
            "the training diverged or the file is damaged: take an earlier checkpoint, or download it again",
        )


def _prefix_hint(held: Iterable[str], wanted: Iterable[str]) -> str:
    """A sentence when all the checkpoint's names are the model's with one prefix too many, else empty."""
    suffixes = tuple("." + w for w in wanted)
    prefixes = {n[: -len(s) + 1] for n in held for s in suffixes if n.endswith(s)}
    return f"the names carry the prefix {min(prefixes)!r}: save the inner model" if len(prefixes) == 1 else ""

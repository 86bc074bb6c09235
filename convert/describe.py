"""What a model file or folder is, and whether a drafter fits a target.

Only headers and configuration files are read. Damaged and hostile files end in a `FormatError`.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import LlamaFileType

from .config import BY_ARCHITECTURE, BY_SPECULATORS_TYPE, DrafterConfig, read_config
from .errors import FormatError
from .file_kinds import not_a_folder
from .gguf_read import GgufFile
from .metadata import VOCABULARY_KEY
from .safetensors import Checkpoint, TensorInfo, has_weights, read_json
from .split import part_paths
from .target import (
    MASK_KEY,
    gguf_architecture,
    gguf_count,
    gguf_layers,
    gguf_uses_mrope,
    hf_text_config,
    hf_uses_mrope,
)
from .tensors import canonical_name


@dataclass(frozen=True, slots=True)
class DrafterFacts:
    """What only drafters have.

    `target_layers` counts layer inputs (k + 1 is the output of layer k). `n_feature` is the width
    of the features that fc reads, 0 if there are no weights. `draft_vocab_size` is None for a
    drafter of the whole vocabulary; `draft_vocab_choice` says how the converter chose it, "" if the
    file does not tell. `origin` names the checkpoint's layout or the file's converter.
    """

    version: int
    block_size: int
    target_layers: tuple[int, ...]
    n_feature: int
    mask_token_id: int | None
    window: int | None
    causal: bool
    conv_kernel_size: int | None
    conv_group_size: int | None
    selector_rank: int | None
    selector_top_k: int | None
    own_head: bool
    draft_vocab_size: int | None
    draft_vocab_choice: str
    origin: str


@dataclass(frozen=True, slots=True)
class Description:
    """A model file or folder in brief.

    `container` is "GGUF" or "Hugging Face folder"; `kind` is "drafter" or "model". Sizes that the
    file does not state are None. `types` counts tensors by type, `quantisation` names the type that
    holds most parameters; `n_bytes` is the size on disk of the file, or of a folder's weights; all
    parts of a split model count. `problem` says why llama.cpp does not read the file, "" if nothing
    is known to speak against it.
    """

    path: Path
    container: str
    kind: str
    problem: str
    architecture: str
    name: str
    n_layers: int | None
    n_embd: int | None
    n_ctx: int | None
    vocab_size: int | None
    tokenizer: str
    mrope: bool
    n_tensors: int
    n_parameters: int
    types: dict[str, int]
    quantisation: str
    n_bytes: int
    drafter: DrafterFacts | None

    @property
    def title(self) -> str:
        """One line: what this is."""
        if self.drafter is None:
            return f"{self.architecture} model"
        return "DFlash2 drafter" if self.drafter.version == 2 else "DFlash (v1) drafter"


def describe(path: str | os.PathLike[str]) -> Description:
    """Say what a GGUF file or Hugging Face folder is.

    Raises `FormatError` when it is neither or is damaged, and `ConversionError` when it is a
    drafter whose configuration is incomplete.
    """
    where = Path(path)
    try:
        if where.is_dir():
            return _describe_folder(where)
        with GgufFile(where) as file:
            return _describe_gguf(file)
    except OSError as error:
        raise FormatError(f"{where}: {error.strerror or error}") from error


def _summary(sizes: list[tuple[str, int]]) -> tuple[int, dict[str, int], str]:
    """Parameters, number of tensors by type, and the type of most parameters.

    `sizes` holds (type, elements) of each tensor.
    """
    elements: Counter[str] = Counter()
    for kind, n_elements in sizes:
        elements[kind] += n_elements
    types = Counter(kind for kind, _ in sizes)
    largest = max(elements, key=lambda kind: elements[kind]) if elements else "none"
    return sum(elements.values()), dict(sorted(types.items())), largest


def _optional_count(file: GgufFile, key: str) -> int | None:
    value = file.get(key)
    return value if type(value) is int else None


def _describe_gguf(file: GgufFile) -> Description:
    architecture = gguf_architecture(file)
    with contextlib.ExitStack() as opened:
        parts = [file]
        parts += [opened.enter_context(GgufFile(path)) for path in part_paths(file)[1:]]
        entries = [entry for part in parts for entry in part.tensors.values()]
        problem = next(filter(None, (part.foreign_type for part in parts)), "")
        n_bytes = sum(part.size for part in parts)
    sizes = [(entry.kind.name, math.prod(entry.shape)) for entry in entries]
    n_parameters, types, largest = _summary(sizes)
    tokens = file.values.get("tokenizer.ggml.tokens")
    tokenizer = "/".join(
        str(part)
        for part in (file.get("tokenizer.ggml.model"), file.get("tokenizer.ggml.pre"))
        if part
    )
    is_drafter = architecture == "dflash"
    return Description(
        path=file.path,
        container="GGUF",
        kind="drafter" if is_drafter else "model",
        problem=problem,
        architecture=architecture,
        name=str(file.get("general.name", "")),
        n_layers=gguf_layers(file, architecture)
        if f"{architecture}.block_count" in file.values
        else None,
        n_embd=_optional_count(file, f"{architecture}.embedding_length"),
        n_ctx=_optional_count(file, f"{architecture}.context_length"),
        vocab_size=tokens.count if tokens else None,
        tokenizer=tokenizer,
        mrope=gguf_uses_mrope(file, architecture),
        n_tensors=len(sizes),
        n_parameters=n_parameters,
        types=types,
        quantisation=_quantisation(file, largest),
        n_bytes=n_bytes,
        drafter=_gguf_facts(file) if is_drafter else None,
    )


def _quantisation(file: GgufFile, largest: str) -> str:
    """The name of `general.file_type` (Q4_K_M, ...), or the type of most parameters."""
    try:
        return LlamaFileType(file.get("general.file_type")).name.split("_", 1)[1]
    except ValueError:
        return largest


def _window(file: GgufFile) -> int | None:
    """The sliding window, None when no layer uses one."""
    pattern = file.get("dflash.attention.sliding_window_pattern")
    used = any(pattern) if isinstance(pattern, list) else bool(pattern)
    return _optional_count(file, "dflash.attention.sliding_window") if used else None


def _gguf_facts(file: GgufFile) -> DrafterFacts:
    layers = file.get("dflash.target_layers")
    fc = file.tensors.get("fc.weight")
    if not isinstance(layers, list) or not layers or any(type(k) is not int for k in layers):
        raise FormatError(
            f"{file.path}: dflash.target_layers is missing. Convert the drafter again."
        )
    if fc is None or not fc.shape:
        raise FormatError(f"{file.path}: tensor fc.weight is missing. Convert the drafter again.")
    if "markov_w1.weight" in file.tensors:
        raise FormatError(f"{file.path}: a DSpark drafter, which is not supported")
    choice = file.get(VOCABULARY_KEY)
    version = 2 if "selector_hidden.weight" in file.tensors else 1
    return DrafterFacts(
        version=version,
        block_size=gguf_count(file, "dflash.block_size"),
        target_layers=tuple(layers),
        n_feature=fc.shape[0],
        mask_token_id=_optional_count(file, MASK_KEY),
        window=_window(file),
        causal=file.get("dflash.attention.causal") is True,
        conv_kernel_size=_optional_count(file, "dflash.conv_kernel_size"),
        conv_group_size=_optional_count(file, "dflash.conv_group_size"),
        selector_rank=_optional_count(file, "dflash.selector_rank"),
        selector_top_k=_optional_count(file, "dflash.selector_top_k"),
        own_head="output.weight" in file.tensors,
        draft_vocab_size=math.prod(file.tensors["d2t"].shape) if "d2t" in file.tensors else None,
        draft_vocab_choice=choice if isinstance(choice, str) else "",
        origin="pydflash2, format " + str(file.get("dflash2.converter.version"))
        if "dflash2.converter.version" in file.values
        else "unknown",
    )


def _dotted(raw: dict[str, Any], prefix: str = "", depth: int = 0) -> Iterator[str]:
    for name, value in raw.items():
        yield prefix + name
        if isinstance(value, dict) and depth < 4:
            yield from _dotted(value, f"{prefix}{name}.", depth + 1)


def _describe_folder(folder: Path) -> Description:
    problem = not_a_folder(folder)
    if problem:
        raise FormatError(f"{folder}: {problem}")
    raw = read_json(folder / "config.json", "the configuration")
    infos: list[TensorInfo] = []
    n_bytes = 0
    if has_weights(folder):
        with Checkpoint(folder) as checkpoint:
            infos = [info for _, info in checkpoint.tensors.values()]
            n_bytes = sum(path.stat().st_size for path in checkpoint.paths)
    sizes = [(info.dtype, math.prod(info.shape)) for info in infos]
    n_parameters, types, largest = _summary(sizes)
    architectures = raw.get("architectures")
    listed = architectures[0] if isinstance(architectures, list) and architectures else "unknown"
    speculators = raw.get("speculators_model_type")
    facts, mrope = None, False
    counts: tuple[int | None, ...]
    if str(listed) in BY_ARCHITECTURE or (speculators and speculators in BY_SPECULATORS_TYPE):
        config = read_config(raw, folder / "config.json", ignore_keys=_dotted(raw))
        counts = (config.n_layers, config.n_embd, config.n_ctx, config.vocab_size or None)
        facts = _config_facts(config, infos)
    else:
        text = hf_text_config(folder)
        keys = ("num_hidden_layers", "hidden_size", "max_position_embeddings", "vocab_size")
        found = [text.get(key) for key in keys]
        counts = tuple(value if type(value) is int else None for value in found)
        mrope = hf_uses_mrope(text)
    return Description(
        path=folder,
        container="Hugging Face folder",
        kind="drafter" if facts else "model",
        problem="",
        architecture=str(listed),
        name=folder.name,
        n_layers=counts[0],
        n_embd=counts[1],
        n_ctx=counts[2],
        vocab_size=counts[3],
        tokenizer="tokenizer.json" if (folder / "tokenizer.json").exists() else "",
        mrope=mrope,
        n_tensors=len(sizes),
        n_parameters=n_parameters,
        types=types,
        quantisation=largest,
        n_bytes=n_bytes,
        drafter=facts,
    )


def _config_facts(config: DrafterConfig, infos: list[TensorInfo]) -> DrafterFacts:
    by_name = {canonical_name(info.name): info for info in infos}
    fc = by_name.get("fc.weight")
    convolution, selector = config.convolution, config.selector
    return DrafterFacts(
        version=config.version,
        block_size=config.block_size,
        target_layers=config.target_layers,
        n_feature=fc.shape[-1] if fc and fc.shape else 0,
        mask_token_id=config.mask_token_id,
        window=config.window if any(config.window_pattern) else None,
        causal=config.causal,
        conv_kernel_size=convolution.kernel_size if convolution else None,
        conv_group_size=convolution.group_size if convolution else None,
        selector_rank=selector.rank if selector else None,
        selector_top_k=selector.top_k if selector else None,
        own_head="lm_head.weight" in by_name,
        draft_vocab_size=config.draft_vocab_size
        if config.draft_vocab_size != config.vocab_size
        else None,
        draft_vocab_choice="",
        origin=config.layout,
    )


def fits(drafter_path: str | os.PathLike[str], target_path: str | os.PathLike[str]) -> list[str]:
    """Reasons why a drafter cannot work with a target; empty when it fits.

    Both may be GGUF files or Hugging Face folders. A fit of sizes and vocabulary says nothing about
    how many tokens will be accepted. Raises `ConversionError` when one of them cannot be read.
    """
    drafter, target = describe(drafter_path), describe(target_path)
    facts = drafter.drafter
    if facts is None:
        return [f"{drafter.path} is not a drafter but a {drafter.title}"]
    if target.drafter is not None:
        return [f"{target.path} is a drafter itself, not a target"]
    problems = [f"{file.path}: {file.problem}" for file in (drafter, target) if file.problem]
    if drafter.n_embd != target.n_embd:
        problems.append(
            f"hidden size: the drafter has {drafter.n_embd}, the target {target.n_embd}"
        )
    elif target.n_embd and facts.n_feature not in (0, len(facts.target_layers) * target.n_embd):
        problems.append(
            f"features: fc reads {facts.n_feature} values, {len(facts.target_layers)} target "
            "layers give "
            f"{len(facts.target_layers) * target.n_embd}"
        )
    if target.n_layers is not None and max(facts.target_layers) > target.n_layers:
        problems.append(
            f"target layers: the drafter reads the output of layer {max(facts.target_layers) - 1} "
            f"(counting from 0), the target has {target.n_layers} layers"
        )
    is_open = drafter.vocab_size is None and drafter.container != "GGUF"
    if not is_open and drafter.vocab_size != target.vocab_size:
        problems.append(
            f"vocabulary: the drafter has {drafter.vocab_size} tokens, the target "
            f"{target.vocab_size}"
        )
    elif drafter.container == target.container == "GGUF":
        problems += _token_problems(drafter.path, target.path)
    if facts.mask_token_id is None:
        problems.append("mask token: the drafter file does not name it; convert the drafter again")
    elif target.vocab_size is not None and facts.mask_token_id >= target.vocab_size:
        problems.append(
            f"mask token: id {facts.mask_token_id} is outside the target's {target.vocab_size} "
            "tokens"
        )
    if drafter.container == "GGUF" and target.mrope and not drafter.mrope:
        problems.append(
            "rotary embedding: the target uses position sections (M-RoPE), the drafter file has "
            "none; "
            "convert the drafter with this target"
        )
    return problems


def _token_problems(drafter: Path, target: Path) -> list[str]:
    """Compare two equally long vocabularies.

    A few renamed special tokens are a fine-tune's right.
    """
    key = "tokenizer.ggml.tokens"
    with GgufFile(drafter) as first, GgufFile(target) as second:
        if key not in first.values or first.raw_value(key) == second.raw_value(key):
            return []
        pairs = list(zip(first.get(key), second.get(key), strict=True))
    n_different = sum(a != b for a, b in pairs)
    if n_different * 100 <= len(pairs):
        return []
    return [
        f"vocabulary: {n_different} of {len(pairs)} tokens differ between drafter and target: "
        "they come "
        "from different model families"
    ]

"""What the converter needs of the target: sizes, rope type and the tokenizer block."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import GGUFValueType

from .errors import ConversionError, FormatError
from .gguf_read import GgufFile
from .gguf_write import Metadata
from .safetensors import read_json
from .scales import TargetScales, find_scales
from .split import refuse_later_part
from .tokenizer_hf import read_tokenizer

MASK_KEY = "tokenizer.ggml.mask_token_id"


@dataclass(frozen=True, slots=True)
class Target:
    """A target model.

    `mrope`: its rotary embedding has several position sections (multimodal models). `problem` says
    why llama.cpp does not read it, "" if nothing is known to speak against it.
    """

    path: Path
    architecture: str
    n_layers: int
    n_embd: int
    vocab_size: int
    mrope: bool
    problem: str
    scales: TargetScales
    tokenizer: tuple[Metadata, ...]


def copy_value(file: GgufFile, key: str) -> Metadata:
    """One metadata entry of `file`, its bytes untouched."""
    value = file.values[key]
    if value.kind is GGUFValueType.ARRAY and value.element is not None:
        shown = f"{value.count} x {value.element.name.lower()}"
    else:
        text = str(file.get(key))
        shown = text if len(text) <= 60 else f"{text[:57]!r}..."
    return Metadata(key, value.kind, file.raw_value(key), shown)


def gguf_count(file: GgufFile, key: str) -> int:
    """An integer key that must be there; per-layer arrays count by their largest entry."""
    value = file.get(key)
    if isinstance(value, list) and value and all(type(v) is int for v in value):
        value = max(value)
    if type(value) is not int or value < 0:
        raise FormatError(
            f"{file.path}: key {key} is {'missing' if value is None else repr(value)[:40]}. "
            "Is this a complete language model? Convert it again."
        )
    return value


def gguf_architecture(file: GgufFile) -> str:
    """`general.architecture`, which every model has; of a split one, the first part."""
    refuse_later_part(file)
    name = file.get("general.architecture")
    if not isinstance(name, str) or not name:
        raise FormatError(f"{file.path}: general.architecture is missing: not a model file")
    return name


def gguf_vocab_size(file: GgufFile) -> int:
    """The number of tokens in the file's tokenizer; raises `FormatError` when it has none."""
    tokens = file.values.get("tokenizer.ggml.tokens")
    if tokens is None or tokens.element is not GGUFValueType.STRING:
        raise FormatError(f"{file.path}: no tokenizer in this file. Pass the complete model.")
    return tokens.count


def gguf_uses_mrope(file: GgufFile, architecture: str) -> bool:
    """Whether the model's rotary embedding is split into position sections."""
    sections = file.get(f"{architecture}.rope.dimension_sections")
    return isinstance(sections, list) and any(sections)


def gguf_layers(file: GgufFile, architecture: str) -> int:
    """The number of layers that produce hidden states, without next-token prediction heads."""
    n_layers = gguf_count(file, f"{architecture}.block_count")
    extra = file.get(f"{architecture}.nextn_predict_layers", 0)
    return n_layers - extra if type(extra) is int and 0 <= extra < n_layers else n_layers


def _from_gguf(path: Path) -> Target:
    with GgufFile(path) as file:
        architecture = gguf_architecture(file)
        if architecture in ("dflash", "clip"):
            what = "a drafter" if architecture == "dflash" else "a vision projector"
            raise ConversionError(
                f"{path} is {what}, not a target. Pass the language model's file."
            )
        n_embd = gguf_count(file, f"{architecture}.embedding_length")
        return Target(
            path=path,
            architecture=architecture,
            n_layers=gguf_layers(file, architecture),
            n_embd=n_embd,
            vocab_size=gguf_vocab_size(file),
            mrope=gguf_uses_mrope(file, architecture),
            problem=file.foreign_type,
            scales=find_scales(architecture, n_embd, lambda key: file.get(f"{architecture}.{key}")),
            tokenizer=tuple(
                copy_value(file, key)
                for key in file.values
                if key.startswith("tokenizer.") and key != MASK_KEY
            ),
        )


def hf_text_config(folder: Path) -> dict[str, Any]:
    """The language model's part of a folder's `config.json`."""
    config = read_json(folder / "config.json", "the target's configuration")
    for name in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(name), dict):
            return {**config, **config[name]}
    return config


def hf_uses_mrope(config: dict[str, Any]) -> bool:
    """Whether a target configuration splits its rotary embedding into position sections."""
    return any(
        isinstance(config.get(name), dict) and "mrope_section" in config[name]
        for name in ("rope_parameters", "rope_scaling")
    )


# llama.cpp's names of hyper-parameters, and what configurations call them.
_HF_NAMES = {
    "embedding_scale": ("embedding_multiplier", "scale_emb", "embedding_multiplier_scale"),
    "logit_scale": ("logit_scale", "logits_scaling", "output_multiplier_scale"),
}


def hf_scales(config: dict[str, Any], n_embd: int) -> TargetScales:
    """What a target configuration says about embeddings and logits."""

    def get(key: str) -> Any:
        names = (key, *_HF_NAMES.get(key, ()))
        return next((config[name] for name in names if config.get(name) is not None), None)

    return find_scales(str(config.get("model_type")), n_embd, get)


def _from_folder(folder: Path) -> Target:
    config = hf_text_config(folder)

    def count(*names: str) -> int:
        value = next((config[name] for name in names if name in config), None)
        if type(value) is not int or value <= 0:
            raise ConversionError(
                f"{folder / 'config.json'}: {names[0]} is {value!r}. Pass the target's GGUF "
                "instead."
            )
        return value

    architectures = config.get("architectures")
    vocab_size = count("vocab_size")
    n_embd = count("hidden_size", "n_embd")
    return Target(
        path=folder,
        architecture=str(architectures[0])
        if isinstance(architectures, list) and architectures
        else "?",
        n_layers=count("num_hidden_layers", "n_layer", "n_layers"),
        n_embd=n_embd,
        vocab_size=vocab_size,
        mrope=hf_uses_mrope(config),
        problem="",
        scales=hf_scales(config, n_embd),
        tokenizer=read_tokenizer(folder, vocab_size),
    )


def read_target(path: Path) -> Target:
    """Read a target from its GGUF file (preferred) or its Hugging Face folder.

    Raises `ConversionError` when it is neither, or lacks something that is needed.
    """
    if path.is_dir():
        return _from_folder(path)
    return _from_gguf(path)

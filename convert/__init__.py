"""Convert DFlash and DFlash2 drafters from Hugging Face checkpoints to GGUF.

The files are those of llama.cpp's `dflash` architecture. They differ from what llama.cpp's own
converter writes in these points only:

* the target's tokenizer comes from its GGUF, byte for byte;
* `dflash.attention.causal` is always written; upstream leaves it out when the configuration is
  silent, and then takes no drafter for causal. Where layers differ, it is false, and
  `dflash2.attention.causal_pattern` says which are;
* `--draft-vocab` gives a drafter a reduced head; upstream's keeps the one that a checkpoint brings;
* `dflash2.converter.*` and `dflash2.source.revision` are added: loaders ignore unknown keys;
* the 4- and 5-bit types, which its converter does not offer, keep small sensitive tensors at Q8_0;
* speculators exports, which its converter refuses, are read;
* biases of the attention are written, which its loader does not take;
* with an M-RoPE target and a partially rotated drafter, `dflash.rope.dimension_sections` counts
  the rotated pairs, where upstream counts half the head;
* a layer list without `use_sliding_window` gets the window it asks for; upstream drops it;
* a missing `input_embedding_scale` is the target's, where that scales its embeddings and shares
  them; upstream writes none.

Needs numpy and gguf; rich for the command line. Nothing of `pydflash2` is imported.
"""

from __future__ import annotations

from .cli import add_arguments, run, terminable
from .converter import ConversionReport, Progress, convert
from .describe import Description, describe, fits
from .errors import ConversionError, FormatError
from .quantise import OUTTYPES
from .vocabulary import Counts, DraftVocabulary

__all__ = [
    "OUTTYPES",
    "ConversionError",
    "ConversionReport",
    "Counts",
    "Description",
    "DraftVocabulary",
    "FormatError",
    "Progress",
    "add_arguments",
    "convert",
    "describe",
    "fits",
    "run",
    "terminable",
]

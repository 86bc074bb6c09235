"""What a draft cannot do without: bytes to read once, and products to compute.

Counted from the files, in the types they have. Only matrices count: norms, convolutions, attention
to a short context and the few rows looked up in the embeddings and the selector's tables are small
beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gguf import GGUFReader, ReaderTensor

from tests.tools.errors import ToolError

_LOOKED_UP = ("token_embd.weight", "selector_predecessor.weight", "selector_successor.weight")
_HEADS = ("output.weight", "token_embd.weight")  # the second one, if there is no first
_FLOATS = ("F32", "F16", "BF16")  # multiplied as float32


@dataclass(frozen=True, slots=True)
class Matrix:
    """What rows are multiplied with. ``kind``: its type; ``use``: which rows, see Draft.rows()."""

    name: str
    kind: str
    n_weights: int
    n_bytes: int
    use: str


@dataclass(frozen=True, slots=True)
class Draft:
    """One cycle's draft phase: tokens drafted, and hidden states fed beforehand."""

    n_draft: int
    n_fed: float

    def rows(self, use: str) -> float:
        """How many rows are multiplied with a matrix of that use."""
        block = self.n_draft + 1  # the last token, and a mask for every token to draft
        return {
            "fed": self.n_fed,
            "fed and block": self.n_fed + block,
            "block": block,
            "drafted": self.n_draft,
        }[use]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the machine does at most, per second."""

    read_bytes: float
    int8_operations: float
    float_operations: float


@dataclass(frozen=True, slots=True)
class Floor:
    """Milliseconds that reading everything once takes, and multiplying at the peak rate."""

    reading_ms: float
    multiplying_ms: float

    @property
    def ms(self) -> float:
        """The longer of the two: at best, one happens during the other."""
        return max(self.reading_ms, self.multiplying_ms)


def draft_matrices(drafter: Path, target: Path) -> list[Matrix]:
    """The matrices that a draft multiplies with: the drafter's and, last, the head it uses."""
    own = _tensors(drafter)
    found = [
        _matrix(tensor, _use(name))
        for name, tensor in own.items()
        if len(tensor.shape) == 2 and name not in (*_LOOKED_UP, _HEADS[0])
    ]
    owner = own if any(name in own for name in _HEADS) else _tensors(target)
    head = next(owner[name] for name in _HEADS if name in owner)
    return [*found, _matrix(head, "drafted")]


def draft_vocabulary(drafter: Path) -> int | None:
    """How many tokens a drafter's own vocabulary has; None if it drafts any token."""
    table = _tensors(drafter).get("d2t")
    return None if table is None else int(table.n_elements)


def draft_block_size(drafter: Path) -> int:
    """Tokens of a block: the last one that is known, and those to draft."""
    field = GGUFReader(drafter).fields.get("dflash.block_size")
    if field is None:
        raise ToolError(f"{drafter} is no DFlash drafter", "a GGUF that `pydflash2 convert` wrote")
    return int(field.contents())


def floor(matrices: list[Matrix], draft: Draft, limits: Limits) -> Floor:
    """The least time one draft phase takes on that machine."""
    n_bytes = sum(matrix.n_bytes for matrix in matrices)
    multiplying_s = 0.0
    for matrix in matrices:
        operations = 2.0 * matrix.n_weights * draft.rows(matrix.use)
        is_float = matrix.kind in _FLOATS
        peak = limits.float_operations if is_float else limits.int8_operations
        multiplying_s += operations / peak if peak else 0.0  # 0: the program knows no such loop
    return Floor(1e3 * n_bytes / limits.read_bytes, 1e3 * multiplying_s)


def _tensors(path: Path) -> dict[str, ReaderTensor]:
    return {tensor.name: tensor for tensor in GGUFReader(path).tensors}


def _matrix(tensor: ReaderTensor, use: str) -> Matrix:
    kind = tensor.tensor_type.name
    return Matrix(tensor.name, kind, int(tensor.n_elements), int(tensor.n_bytes), use)


def _use(name: str) -> str:
    if name == "fc.weight":
        return "fed"
    if name.endswith(("attn_k.weight", "attn_v.weight")):
        return "fed and block"
    return "drafted" if name == "selector_hidden.weight" else "block"

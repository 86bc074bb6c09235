"""A drafter, and the tiny Llama target under it, as plain NumPy in double precision.

Written from the description of the algorithm, not from the native code, to be easily read: there is
no cache, and nothing is fast. Reads the GGUF files that the library reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

Array = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class GgufModel:
    """Keys and unquantised tensors of a file, the latter in double precision."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self._keys = {name: field.contents() for name, field in reader.fields.items()}
        self.ids = {t.name: np.array(t.data) for t in reader.tensors if t.data.dtype == np.int64}
        self.tensors: dict[str, Array] = {}
        for tensor in reader.tensors:
            if tensor.data.dtype == np.float32:
                self.tensors[tensor.name] = tensor.data.astype(np.float64)
            elif tensor.data.dtype != np.int64:
                raise ValueError(f"{tensor.name} is quantised")

    def key(self, name: str, default: Any = None) -> Any:
        """The value of a key, or the default; KeyError without one."""
        if name in self._keys or default is None:
            return self._keys[name]
        return self._keys.get(name, default)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a drafter makes of one block."""

    hidden: Array  # [block, n_embd] after the final norm
    logits: Array  # [block - 1, n_vocab], the drafter's own vocabulary if it has one
    candidates: Ids  # [block - 1, k] target ids, best logit first
    scores: Array  # [block - 1, k] along the path
    path: Ids  # [block - 1] target ids
    margin: float  # least difference that decided about a candidate or the path


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    mean_square: Array = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + eps) * weight


def silu(x: Array) -> Array:
    return x / (1.0 + np.exp(-x))


def gelu(x: Array) -> Array:
    """The tanh form."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def attention(
    q: Array, k: Array, v: Array, visible: Mask, scale: float, sinks: Array | None = None
) -> Array:
    """Softmax attention, [rows, heads, head_dim] each; query heads share the fewer K/V heads.

    A sink is one more logit of its head: it takes weight and gives no value.
    """
    n_query, n_head, head_dim = q.shape
    out = np.empty_like(q)
    for head in range(n_head):
        shared = head // (n_head // k.shape[1])
        logits = np.where(visible, scale * (q[:, head] @ k[:, shared].T), -np.inf)
        if sinks is not None:
            logits = np.concatenate([logits, np.full((n_query, 1), sinks[head])], axis=1)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        out[:, head] = weights[:, : k.shape[0]] @ v[:, shared]
    return out.reshape(n_query, n_head * head_dim)


class SharedWeights:
    """What drafters take from a target of whatever architecture."""

    def __init__(self, path: Path) -> None:
        self._file = GgufModel(path)
        self.embeddings = self._file.tensors["token_embd.weight"]
        self.head = self._file.tensors["output.weight"]


class NumpyTarget(SharedWeights):
    """A Llama in float32, for the features a drafter taps."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._eps = float(self._file.key("llama.attention.layer_norm_rms_epsilon"))

    def run(self, tokens: Sequence[int]) -> tuple[list[Array], Array]:
        """The layer inputs [n_tokens, n_embd], the last layer's output included, and the logits."""
        weights, eps = self._file.tensors, self._eps
        positions = np.arange(len(tokens))
        causal = positions[:, None] >= positions[None, :]
        x = self.embeddings[list(tokens)]
        inputs = [x]
        for i in range(self._file.key("llama.block_count")):
            block = f"blk.{i}."
            normed = rms_norm(x, weights[f"{block}attn_norm.weight"], eps)
            q, k, v = (self._heads(normed @ weights[f"{block}attn_{s}.weight"].T) for s in "qkv")
            q, k = self._rotate(q, positions), self._rotate(k, positions)
            mixed = attention(q, k, v, causal, q.shape[-1] ** -0.5)
            x = x + mixed @ weights[f"{block}attn_output.weight"].T
            normed = rms_norm(x, weights[f"{block}ffn_norm.weight"], eps)
            gate = silu(normed @ weights[f"{block}ffn_gate.weight"].T)
            up = normed @ weights[f"{block}ffn_up.weight"].T
            x = x + (gate * up) @ weights[f"{block}ffn_down.weight"].T
            inputs.append(x)
        return inputs, rms_norm(x, weights["output_norm.weight"], eps) @ self.head.T

    def _heads(self, x: Array) -> Array:
        return x.reshape(len(x), -1, self._file.key("llama.rope.dimension_count"))

    def _rotate(self, x: Array, positions: Ids) -> Array:
        """llama.cpp's Llama files have their rows in the order that rotates neighbours."""
        base = float(self._file.key("llama.rope.freq_base"))
        frequencies = base ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
        angles = (positions[:, None] * frequencies)[:, None, :]
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * np.cos(angles) - x[..., 1::2] * np.sin(angles)
        out[..., 1::2] = x[..., 0::2] * np.sin(angles) + x[..., 1::2] * np.cos(angles)
        return out


class NumpyDrafter:
    """A DFlash or DFlash 2 drafter."""

    def __init__(self, path: Path) -> None:
        self._file = GgufModel(path)
        self._weights = self._file.tensors
        self.taps: list[int] = self._key("target_layers")
        self.block_size: int = self._key("block_size")
        self._n_layer: int = self._key("block_count")
        self._head_dim: int = self._key("attention.key_length")
        self._eps = float(self._key("attention.layer_norm_rms_epsilon"))
        self._is_version_2 = "selector_hidden.weight" in self._weights
        self._frequencies, self._magnitude = self._rope()

    def _key(self, name: str, default: Any = None) -> Any:
        return self._file.key(f"dflash.{name}", default)

    def features(self, layer_inputs: Sequence[Array]) -> Array:
        """The taps of each token, one after the other."""
        return np.concatenate([layer_inputs[tap] for tap in self.taps], axis=1)

    def predict(self, features: Array, anchor: int, target: SharedWeights) -> Prediction:
        """Features of all tokens before the anchor; the anchor is at the position after them."""
        fused = self._norm(features @ self._weights["fc.weight"].T, "enc.output_norm")
        x = self._block_embeddings(anchor, target)
        for i in range(self._n_layer):
            x = self._layer(i, fused, x)
        hidden = self._norm(x, "output_norm")
        return self._select(hidden, self._logits(hidden[1:], target), anchor)

    def _norm(self, x: Array, name: str) -> Array:
        return rms_norm(x, self._weights[f"{name}.weight"], self._eps)

    def _optional_norm(self, x: Array, name: str) -> Array:
        return self._norm(x, name) if f"{name}.weight" in self._weights else x

    def _block_embeddings(self, anchor: int, target: SharedWeights) -> Array:
        mask = self._file.key("tokenizer.ggml.mask_token_id")
        table = self._weights.get("token_embd.weight", target.embeddings)
        scale = float(self._key("embedding_scale", 1.0))
        return scale * table[[anchor] + [mask] * (self.block_size - 1)]

    # -- One layer ---------------------------------------------------------------------------------

    def _layer(self, index: int, fused: Array, block: Array) -> Array:
        prefix = f"blk.{index}."
        normed = self._norm(block, f"{prefix}attn_norm")
        mixed = self._convolve(normed, normed, f"{prefix}attn_conv", side=0)
        mixed = self._attend(index, fused, mixed)
        mixed = self._convolve(mixed, normed, f"{prefix}attn_conv", side=1)
        block = block + self._optional_norm(mixed, f"{prefix}post_attention_norm")

        normed = self._norm(block, f"{prefix}ffn_norm")
        mixed = self._convolve(normed, normed, f"{prefix}ffn_conv", side=0)
        activation = silu if self._key("hidden_activation", "silu") == "silu" else gelu
        gate = activation(mixed @ self._weights[f"{prefix}ffn_gate.weight"].T)
        up = mixed @ self._weights[f"{prefix}ffn_up.weight"].T
        mixed = (gate * up) @ self._weights[f"{prefix}ffn_down.weight"].T
        mixed = self._convolve(mixed, normed, f"{prefix}ffn_conv", side=1)
        block = block + self._optional_norm(mixed, f"{prefix}post_ffw_norm")
        return block * self._weights.get(f"{prefix}layer_output_scale.weight", np.ones(1))

    def _convolve(self, x: Array, source: Array, name: str, *, side: int) -> Array:
        """y[i,c] = sum over t of (base[side,t,c] + delta[i,side,t,group(c)]) * x[i-t,c]. The
        deltas come from `source`, the sublayer's normed input, on both sides."""
        if not self._is_version_2:
            return x
        base = self._weights[f"{name}_base"][side]
        n_taps, n_embd = base.shape
        group_size = self._key("conv_group_size")
        delta = source @ self._weights[f"{name}_proj.weight"].T
        delta = delta.reshape(len(x), 2, n_taps, n_embd // group_size)[:, side]
        y = np.zeros_like(x)
        for i in range(len(x)):
            for t in range(min(n_taps, i + 1)):
                y[i] += (base[t] + np.repeat(delta[i, t], group_size)) * x[i - t]
        return y

    def _attend(self, index: int, fused: Array, x: Array) -> Array:
        prefix = f"blk.{index}."
        n_context = len(fused)
        rows = np.concatenate([fused, x])
        positions = np.arange(len(rows))
        q = self._norm(self._heads(x, f"{prefix}attn_q"), f"{prefix}attn_q_norm")
        k = self._norm(self._heads(rows, f"{prefix}attn_k"), f"{prefix}attn_k_norm")
        v = self._heads(rows, f"{prefix}attn_v")
        mixed = attention(
            self._rotate(q, positions[n_context:]),
            self._rotate(k, positions),
            v,
            self._visible(index, positions[n_context:], positions),
            float(self._key("attention.scale", self._head_dim**-0.5)),
            self._weights.get(f"{prefix}attn_sinks.weight"),
        )
        projected: Array = mixed @ self._weights[f"{prefix}attn_output.weight"].T
        projected = projected * float(self._key("attention.value_scale", 1.0))
        return projected + self._bias(f"{prefix}attn_output")

    def _heads(self, x: Array, name: str) -> Array:
        projected: Array = x @ self._weights[f"{name}.weight"].T + self._bias(name)
        return projected.reshape(len(x), -1, self._head_dim)

    def _bias(self, name: str) -> Array:
        return self._weights.get(f"{name}.bias", np.zeros(1))

    def _visible(self, index: int, queries: Ids, keys: Ids) -> Mask:
        distance = queries[:, None] - keys[None, :]
        visible = np.ones(distance.shape, np.bool_)
        stated = [self._key("attention.causal", False)] * self._n_layer
        if self._file.key("dflash2.attention.causal_pattern", stated)[index]:
            visible &= distance >= 0
        window = self._key("attention.sliding_window", 0)
        if window > 0 and self._key("attention.sliding_window_pattern")[index]:
            visible &= np.abs(distance) < window
        return visible

    # -- Rotary embedding --------------------------------------------------------------------------

    def _rope(self) -> tuple[Array, float]:
        """Angle per position of each pair, and the factor on rotated values."""
        n_dims: int = self._key("rope.dimension_count", self._head_dim)
        base = float(self._key("rope.freq_base", 10000.0))
        factor = float(self._key("rope.scaling.factor", 1.0))
        pairs = np.arange(n_dims // 2)
        plain = base ** (-2.0 * pairs / n_dims)
        if "rope_freqs.weight" in self._weights:
            plain = plain / self._weights["rope_freqs.weight"][: len(pairs)]
        magnitude = float(self._key("rope.scaling.attn_factor", 1.0))
        kind = self._key("rope.scaling.type", "linear")
        if kind == "none":
            return plain, magnitude
        if kind == "linear":
            return plain / factor, magnitude

        # YaRN: pairs that turn often within the trained context keep their frequency, pairs that
        # turn less than once are interpolated, the ones between are blended
        n_trained: int = self._key(
            "rope.scaling.original_context_length", self._key("context_length")
        )

        def pair_turning(n_turns: float) -> float:
            return n_dims * math.log(n_trained / (n_turns * 2 * math.pi)) / (2 * math.log(base))

        low = math.floor(pair_turning(float(self._key("rope.scaling.yarn_beta_fast", 32.0))))
        high = math.ceil(pair_turning(float(self._key("rope.scaling.yarn_beta_slow", 1.0))))
        low, high = max(low, 0), min(high, n_dims - 1)
        kept = 1.0 - np.clip((pairs - low) / max(high - low, 0.001), 0.0, 1.0)
        kept = kept * float(self._key("rope.scaling.yarn_ext_factor", 1.0))
        usual = 0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0
        magnitude *= float(self._key("rope.scaling.yarn_attn_factor", usual))
        return plain * kept + plain / factor * (1.0 - kept), magnitude

    def _rotate(self, x: Array, positions: Ids) -> Array:
        """Pairs are (i, i + half), NeoX's way; dimensions past them stay as they are."""
        half = len(self._frequencies)
        angles = (positions[:, None] * self._frequencies)[:, None, :]
        cos, sin = self._magnitude * np.cos(angles), self._magnitude * np.sin(angles)
        first, second = x[..., :half], x[..., half : 2 * half]
        rotated = (first * cos - second * sin, first * sin + second * cos, x[..., 2 * half :])
        return np.concatenate(rotated, axis=-1)

    # -- Selection ---------------------------------------------------------------------------------

    def _logits(self, hidden: Array, target: SharedWeights) -> Array:
        own_head = self._weights.get("output.weight", self._weights.get("token_embd.weight"))
        head = target.head if own_head is None else own_head
        logits: Array = hidden @ head.T * float(self._key("logit_scale", 1.0))
        cap = float(self._key("final_logit_softcapping", 0.0))
        if cap > 0.0:
            logits = cap * np.tanh(logits / cap)
        return logits

    def _select(self, hidden: Array, logits: Array, anchor: int) -> Prediction:
        k = self._key("selector_top_k") if self._is_version_2 else 1
        to_target = self._file.ids.get("d2t", np.arange(logits.shape[1]))
        all_candidates, all_scores, path = [], [], []
        gaps: list[float] = []
        previous = anchor
        for h, row in zip(hidden[1:], logits, strict=True):
            order = np.argsort(-row, kind="stable")
            best = order[:k]
            candidates = to_target[best]
            scores = row[best]
            if self._is_version_2:
                gate = self._weights["selector_hidden.weight"] @ h
                condition = self._weights["selector_predecessor.weight"][previous] * gate
                scores = scores + self._weights["selector_successor.weight"][candidates] @ condition
            previous = int(candidates[np.argmax(scores)])
            ranked = np.sort(scores)[::-1]
            gaps += (-np.diff(row[order[: k + 1]])).tolist() + (-np.diff(ranked[:2])).tolist()
            all_candidates.append(candidates)
            all_scores.append(scores)
            path.append(previous)
        return Prediction(
            hidden,
            logits,
            np.array(all_candidates),
            np.array(all_scores),
            np.array(path),
            min(gaps),
        )

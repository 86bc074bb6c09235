"""Run llama.cpp's own converter on a drafter and record what it wrote.

The manifest lists every metadata key (type and value) and every tensor (shape, type and the SHA-256
of its bytes). `tests/unit/test_convert_upstream.py` compares our converter with the stored
manifests; run this script again when the llama.cpp pin moves (the full command is in
`tests/data/convert/README.md`).

It needs torch and transformers. The target's tokenizer is left out on purpose (the tiny target has
none in Hugging Face form, and ours is copied from the target's GGUF, byte for byte): the tokenizer
step is replaced by one that writes the mask token alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import tests.tools  # noqa: F401 (before gguf-py of llama.cpp, which has a tests of its own)


def run_upstream(
    *, llama_cpp: Path, drafter: Path, target: Path, outtype: str, outfile: Path
) -> None:
    """Convert `drafter` with llama.cpp's converter into `outfile`.

    `target` is any folder with the target's `config.json`. Raises whatever the converter raises.
    """
    for path in (llama_cpp / "gguf-py", llama_cpp):
        if str(path) not in sys.path:
            sys.path.insert(0, str(path))
    import gguf
    import torch
    from conversion import get_model_class

    model_class = get_model_class(
        json.loads((drafter / "config.json").read_text())["architectures"][0]
    )

    def write_mask_token_only(self: Any) -> None:
        keys = self.hparams.get("dflash_config", self.hparams)
        self.gguf_writer.add_mask_token_id(keys["mask_token_id"])

    model_class.set_vocab = write_mask_token_only
    file_type = {
        "f32": gguf.LlamaFileType.ALL_F32,
        "f16": gguf.LlamaFileType.MOSTLY_F16,
        "bf16": gguf.LlamaFileType.MOSTLY_BF16,
        "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    }[outtype]
    with torch.inference_mode():
        model_class(drafter, file_type, outfile, target_model_dir=target).write()


def manifest_of(path: Path) -> dict[str, Any]:
    """Keys, types, values, tensor shapes (innermost first) and digests of the GGUF at `path`."""
    import gguf

    reader = gguf.GGUFReader(path)
    keys = {
        name: [[kind.name for kind in field.types], field.contents()]
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.")
    }
    tensors = {
        tensor.name: {
            "shape": [int(n) for n in tensor.shape],
            "type": tensor.tensor_type.name,
            "sha256": hashlib.sha256(tensor.data.tobytes()).hexdigest(),
        }
        for tensor in reader.tensors
    }
    return {"keys": keys, "tensors": tensors}


def variants(target: Path, convert: Callable[[Path, Path, str], dict[str, Any]]) -> dict[str, Any]:
    """Manifests of the checkpoints that are not stored: variants of the fixtures, converted for an
    M-RoPE target, and published layouts."""

    from tests.tools.convert_support import MROPE_SECTIONS, VARIANTS
    from tests.tools.published import PUBLISHED

    config = json.loads((target / "config.json").read_text())
    config["rope_parameters"]["mrope_section"] = MROPE_SECTIONS
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        for name, make in VARIANTS.items():
            drafter = make().save(Path(folder) / name)
            result[f"{name}/f32"] = convert(drafter, Path(folder), "f32")
        for name, published in PUBLISHED.items():
            drafter = published.save(Path(folder) / name)
            suitable = Path(folder) if published.has_mrope else target
            result[f"{name}/bf16"] = convert(drafter, suitable, "bf16")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("drafters", nargs="+", type=Path, help="drafter folders")
    parser.add_argument("--llama-cpp", type=Path, required=True, help="llama.cpp source tree")
    parser.add_argument(
        "--target", type=Path, required=True, help="folder with the target's config"
    )
    parser.add_argument("--outtype", action="append", required=True)
    parser.add_argument(
        "--variants", action="store_true", help="add variants (f32) and published layouts (bf16)"
    )
    parser.add_argument("--out", type=Path, required=True, help="manifest to write (JSON)")
    args = parser.parse_args()

    def convert(drafter: Path, target: Path, outtype: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            outfile = Path(folder) / "upstream.gguf"
            run_upstream(
                llama_cpp=args.llama_cpp,
                drafter=drafter,
                target=target,
                outtype=outtype,
                outfile=outfile,
            )
            return manifest_of(outfile)

    result: dict[str, Any] = {}
    for drafter in args.drafters:
        for outtype in args.outtype:
            result[f"{drafter.name}/{outtype}"] = convert(drafter, args.target, outtype)
    if args.variants:
        result |= variants(args.target, convert)
    args.out.write_text(json.dumps(result, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

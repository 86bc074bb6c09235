"""Options that several commands share."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydflash2._options import CACHE_TYPES, RANDOM_SEED, new_seed
from pydflash2.cli._terminal import COLOR_CHOICES
from pydflash2.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pydflash2 import GenerateOptions, Llama, SessionOptions


def add_output(parser: argparse.ArgumentParser) -> None:
    """--color and --verbose."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--color",
        choices=COLOR_CHOICES,
        default="auto",
        help="show accepted draft tokens in colour: auto (default) on terminals only",
    )
    add_verbose(group)


def add_verbose(parser: Any) -> None:
    """--verbose. parser: an ArgumentParser or one of its groups."""
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="show llama.cpp's log, and a traceback with an error",
    )


def add_models(parser: argparse.ArgumentParser) -> None:
    """Which models to load, and how."""
    group = parser.add_argument_group("models")
    group.add_argument(
        "-m",
        "--target",
        metavar="FILE",
        help="GGUF file of the model to run (default: the small demo model)",
    )
    group.add_argument(
        "-d",
        "--drafter",
        metavar="FILE",
        help="GGUF file of its drafter; without one, --target decodes plainly",
    )
    add_threads(group)
    group.add_argument(
        "--checkpoint-mib",
        type=int,
        metavar="N",
        help="most MiB for copies of a recurrent model's state, to which an edited chat goes back; "
        "0: none (default: 512, at most an eighth of what is available)",
    )
    add_context(group)
    _add_drafting(parser)


def add_context(group: Any) -> None:
    """What a target's context is like, and how much memory it takes. group: as add_verbose's
    parser."""
    group.add_argument(
        "-c",
        "--ctx-size",
        type=int,
        default=4096,
        metavar="N",
        help="context length; rounded up to a multiple of 256 (4096)",
    )
    group.add_argument(
        "--no-kernels",
        dest="kernels",
        action="store_false",
        help="compute with llama.cpp's own kernels only",
    )
    for flag, option, what in (
        ("-ctk", "--cache-type-k", "keys"),
        ("-ctv", "--cache-type-v", "values"),
    ):
        group.add_argument(
            flag,
            option,
            choices=CACHE_TYPES,
            default="f16",
            metavar="TYPE",
            help=f"number format of the {what} in the K/V cache: {', '.join(CACHE_TYPES)} (f16)",
        )
    group.add_argument(
        "--no-swa-full",
        dest="swa_full",
        action="store_false",
        help="save memory: layers with a sliding window keep the window, not the whole context",
    )


def context_options(args: argparse.Namespace) -> dict[str, Any]:
    """add_context's, as load() and plan() take them."""
    return {
        "n_ctx": args.ctx_size,
        "kernels": args.kernels,
        "cache_type_k": args.cache_type_k,
        "cache_type_v": args.cache_type_v,
        "swa_full": args.swa_full,
    }


def add_threads(parser: Any) -> None:
    """--threads. parser: as add_verbose's."""
    parser.add_argument(
        "-t",
        "--threads",
        type=int,
        metavar="N",
        help="threads (default: one per fast core, within the CPU quota)",
    )


def add_n_draft(parser: Any) -> None:
    """--n-draft. parser: as add_verbose's."""
    parser.add_argument(
        "--n-draft",
        type=_draft_length,
        default="auto",
        metavar="N",
        help='tokens drafted per cycle, 0 for none, or "auto" (default): chosen while running',
    )


def _add_drafting(parser: argparse.ArgumentParser) -> None:
    """What session_options() reads."""
    group = parser.add_argument_group("drafting")
    add_n_draft(group)
    group.add_argument(
        "--threads-draft",
        type=int,
        metavar="N",
        help="threads that draft, at most --threads (default: as many)",
    )
    group.add_argument(
        "--window",
        type=int,
        metavar="N",
        help="most context tokens the drafter attends to (2048)",
    )
    group.add_argument(
        "--cache-type",
        choices=CACHE_TYPES,
        default="f16",
        metavar="TYPE",
        help="number format of the drafter's cache, one of the same (f16)",
    )


def add_template(parser: argparse.ArgumentParser) -> None:
    """What template_variables() reads."""
    parser.add_argument(
        "--template-var",
        action="append",
        default=[],
        type=_template_variable,
        metavar="NAME=VALUE",
        help="a variable of the chat template, e.g. enable_thinking=false; JSON if VALUE is that, "
        "otherwise text; may be given several times",
    )


def _template_variable(text: str) -> tuple[str, Any]:
    """A value of --template-var."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, not {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def template_variables(args: argparse.Namespace) -> dict[str, Any]:
    """What add_template's option says; of several with one name the last."""
    return dict(args.template_var)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """How tokens are picked and when to stop."""
    group = parser.add_argument_group("generation")
    group.add_argument(
        "-n",
        "--max-tokens",
        type=int,
        default=256,
        metavar="N",
        help="most tokens to generate (256)",
    )
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="stop before this text; may be given several times",
    )
    group.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="X",
        help="0 (default) always takes the most probable token; higher is more varied",
    )
    group.add_argument("--top-k", type=int, default=40, metavar="N", help="(40)")
    group.add_argument("--top-p", type=float, default=0.95, metavar="X", help="(0.95)")
    group.add_argument("--min-p", type=float, default=0.05, metavar="X", help="(0.05)")
    group.add_argument("--repeat-penalty", type=float, default=1.0, metavar="X", help="(1.0: none)")
    group.add_argument(
        "--seed",
        type=int,
        default=RANDOM_SEED,
        metavar="N",
        help="of the random numbers (-1: another one each time)",
    )


def _draft_length(text: str) -> int | str:
    """A value of --n-draft."""
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'expected a number or "auto", not {text!r}') from None


def model_paths(args: argparse.Namespace) -> tuple[Path, Path | None]:
    """The target and the drafter that add_models' options name; the demo pair if they name none."""
    import pydflash2

    if args.target is not None:
        return Path(args.target), Path(args.drafter) if args.drafter else None
    if args.drafter is not None:
        raise InvalidArgumentError("--drafter needs --target: a drafter is made for one model")
    return pydflash2.demo_pair()


def open_llama(args: argparse.Namespace) -> Llama:
    """Loads what model_paths() says, as add_models' options say."""
    import pydflash2

    target, drafter = model_paths(args)
    return pydflash2.load(
        target,
        drafter,
        n_threads=args.threads,
        **context_options(args),
        verbose=args.verbose,
        **session_options(args),
    )


def session_options(args: argparse.Namespace) -> SessionOptions:
    """What add_models' options say about drafting, and about long rewinds."""
    mib: int | None = args.checkpoint_mib
    return {
        "n_draft": args.n_draft,
        "window": args.window,
        "cache_type": args.cache_type,
        "n_threads_draft": args.threads_draft,
        "checkpoint_bytes": None if mib is None else mib << 20,
    }


def generate_options(args: argparse.Namespace) -> GenerateOptions:
    """What add_sampling's options say; a seed is chosen here if none is given, so that all calls
    with these options draw the same numbers."""
    return {
        "max_tokens": args.max_tokens,
        "stop": args.stop,
        "temperature": args.temperature,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "min_p": args.min_p,
        "repeat_penalty": args.repeat_penalty,
        "seed": new_seed() if args.seed == RANDOM_SEED else args.seed,
    }

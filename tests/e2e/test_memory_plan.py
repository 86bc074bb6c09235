"""What is planned of memory against what llama.cpp logs, the library counts and the process takes;
and that what does not fit is refused before it is loaded."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGUFReader, GGUFWriter

import pydflash2
from tests.tools.gguf_files import copy_tokenizer, finish
from tests.tools.recurrent_targets import write_recurrent_target
from tests.tools.sparse_target import write_sparse_target
from tests.tools.synthetic import Shape
from tests.tools.tiny_targets import write_tiny_target

MIB = 2**20
ROUNDING = 0.005 * MIB  # of a size in the log

ATTENTION = ("qwen2", "gemma3", "gemma3n")  # whole contexts, sliding windows, shared caches
MARKS = ("lfm2", "mamba")
KEPT = ("qwen35", "glm5-next")


@pytest.fixture(scope="module")
def target_of(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes the target of an architecture, once."""
    folder = tmp_path_factory.mktemp("planned")

    def find(architecture: str) -> Path:
        path = folder / f"{architecture}.gguf"
        write = write_tiny_target if architecture in ATTENTION else write_recurrent_target
        return path if path.exists() else write(path, architecture, tokenizer_from=tiny_target)

    return find


def logged(log: str, what: str) -> tuple[float, float]:
    """Bytes of all buffers of a kind that llama.cpp's log tells of, and how exact that is."""
    sizes = re.findall(rf"{what} buffer size = +([\d.]+) MiB", log)
    return sum(float(size) for size in sizes) * MIB, len(sizes) * ROUNDING


@pytest.mark.parametrize("architecture", [*ATTENTION, *MARKS, *KEPT])
def test_what_llama_cpp_logs(
    architecture: str, target_of: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    path = target_of(architecture)
    planned = pydflash2.plan(path, n_ctx=8192)
    capfd.readouterr()
    with pydflash2.load(path, n_ctx=8192, verbose=True) as llm:
        log = capfd.readouterr().err
        stats = llm.stats()
    assert log.count("no_alloc              = 0") == 1
    assert "no_alloc              = 1" not in log  # planning is quiet
    for what, n_bytes in (
        ("KV", planned.attention_bytes + planned.window_bytes),
        ("RS", planned.state_bytes + planned.rewind_bytes),
        ("compute", planned.compute_bytes),
    ):
        told, error = logged(log, what)
        assert abs(n_bytes - told) <= error, what
    assert planned.rewind_bytes == stats.target_rewind_bytes
    copies = 0 if architecture in ATTENTION else 8 if architecture in KEPT else 1
    assert planned.rewind_bytes == copies * planned.state_bytes
    assert 0 <= planned.target_packed_bytes - stats.target_packed_bytes < MIB


def test_the_pair(smollm_target: Path, smollm_drafter: Path) -> None:
    planned = pydflash2.plan(
        smollm_target, smollm_drafter, n_ctx=1024, window=512, cache_type="f32"
    )
    with pydflash2.load(
        smollm_target, smollm_drafter, n_ctx=1024, window=512, cache_type="f32"
    ) as llm:
        stats = llm.stats()
    assert planned.fits
    assert (
        planned.total_bytes
        == sum(
            getattr(planned, name)
            for name in pydflash2.MemoryPlan.__dataclass_fields__
            if name.endswith("_bytes") and name not in ("available_bytes", "total_bytes")
        )
        - planned.mapped_bytes
    )
    assert planned.drafter_cache_bytes == stats.drafter_cache_bytes
    assert planned.drafter_compute_bytes == stats.drafter_compute_bytes
    assert planned.drafter_packed_bytes == stats.drafter_packed_bytes
    packed_part = stats.drafter_weights_bytes - planned.drafter_mapped_bytes
    assert (packed_part > 0) == (stats.drafter_packed_bytes > 0)


# Prints what a process has taken that no file stands behind, and what was planned.
GROWTH = """
import sys, pydflash2
def taken():
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
target, drafter = sys.argv[1:]
arguments = dict(n_ctx=4096, n_threads=1)
pydflash2.plan(target, drafter, **arguments)
before = taken()
planned = pydflash2.plan(target, drafter, **arguments)
print(taken() - before)
before = taken()
with pydflash2.load(target, drafter, **arguments) as llm:
    llm.session.prefill(llm.tokenize("one two three four " * 200))
    llm.session.step()
    print(taken() - before, planned.total_bytes, planned.compute_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_the_process_takes(smollm_target: Path, smollm_drafter: Path) -> None:
    """As much as planned, but for the vocabulary, graphs and Python's objects, and the logits of a
    whole batch, which compute buffers have room for and nobody asks for."""
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, str(smollm_target), str(smollm_drafter)],
        capture_output=True,
        text=True,
        check=True,
    )
    for_the_plan, taken, planned, compute = map(int, done.stdout.split())
    assert for_the_plan < 8 * MIB
    assert planned - compute < taken < planned + 64 * MIB


LARGE = Shape("llama", 5120, 25600, 62, 40, 8, 128, 32000)  # 30 billion weights


@pytest.mark.skipif(sys.platform != "linux", reason="the file is sparse")
def test_a_large_model(tmp_path: Path) -> None:
    """None of the file but its header is read, and no memory taken for what is planned."""
    path = write_sparse_target(tmp_path / "large.gguf", LARGE)
    assert path.stat().st_size > 16e9
    assert path.stat().st_blocks * 512 < 16 * MIB
    script = (
        "import resource, sys, pydflash2\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "planned = pydflash2.plan(sys.argv[1], n_ctx=32768)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
        "weights = planned.target_packed_bytes + planned.target_mapped_bytes\n"
        "print(planned.attention_bytes, weights)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    kilobytes, attention, weights = map(int, done.stdout.split())
    assert kilobytes < 128 * 1024
    assert attention == 2 * 2 * 32768 * 8 * 128 * LARGE.n_layer
    assert abs(weights - path.stat().st_size) < 0.05 * path.stat().st_size


def test_parts(tiny_target: Path, tmp_path: Path) -> None:
    """A split model's plan is that of the whole one."""
    source = GGUFReader(tiny_target)
    writer = GGUFWriter(tmp_path / "split.gguf", "llama", split_max_tensors=20)
    for name, field in source.fields.items():
        if name.startswith("llama."):
            writer.add_key_value(name, field.contents(), field.types[0])
    copy_tokenizer(writer, source)
    for tensor in source.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    finish(writer)
    first, _second = sorted(tmp_path.glob("split-*.gguf"))
    whole = pydflash2.plan(tiny_target)
    assert replace(pydflash2.plan(first), available_bytes=whole.available_bytes) == whole


def test_refusals(smollm_target: Path, smollm_drafter: Path) -> None:
    """Before anything is loaded, with what is needed and what would help."""
    for drafter in (None, smollm_drafter):
        planned = pydflash2.plan(smollm_target, drafter, n_ctx=8192, max_bytes=100 * MIB)
        assert not planned.fits
        assert planned.available_bytes == 100 * MIB
        packed = pydflash2.enable_kernels().packed_bytes
        with pytest.raises(pydflash2.OutOfMemoryError) as caught:
            pydflash2.load(smollm_target, drafter, n_ctx=8192, max_bytes=100 * MIB)
        assert pydflash2.enable_kernels().packed_bytes == packed
        assert str(caught.value) == planned.problem
        for words in (
            f"{planned.total_bytes / MIB:.1f} MiB of memory with a context of 8192 tokens, "
            "and 100.0 MiB are available",
            f"K/V cache {planned.attention_bytes / MIB:.1f} MiB",
            "a smaller n_ctx than 8192 (1024 tokens take 22.5 MiB)",
            "a larger max_bytes",
        ):
            assert words in planned.problem
        if planned.target_packed_bytes:
            assert "kernels off (kernels = false): " in planned.problem


def test_room_for_unpacked_weights_alone(
    smollm_target: Path, smollm_drafter: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for drafter in (None, smollm_drafter):
        asked = pydflash2.plan(smollm_target, drafter, n_ctx=512)
        if not asked.target_packed_bytes:
            pytest.skip("nothing is packed in this process")
        bound = asked.total_bytes - MIB
        planned = pydflash2.plan(smollm_target, drafter, n_ctx=512, max_bytes=bound)
        assert planned.fits
        assert not planned.kernels
        assert planned.target_packed_bytes == 0
        assert "no memory for" in planned.note
        caplog.clear()
        with (
            caplog.at_level(logging.WARNING, "pydflash2"),
            pydflash2.load(smollm_target, drafter, n_ctx=512, max_bytes=bound) as llm,
        ):
            assert llm.stats().target_packed_bytes == 0
        assert "no memory for" in caplog.text


def test_beside_a_session(tiny_target: Path, tiny_drafter: Path) -> None:
    """What other threads open and decode meanwhile is real."""
    expected = []
    for is_planning in (False, True):
        stop = threading.Event()

        def plan_on(stop: threading.Event = stop) -> None:
            while not stop.is_set():
                pydflash2.plan(tiny_target, tiny_drafter, n_ctx=256)

        threads = [threading.Thread(target=plan_on) for _ in range(2 if is_planning else 0)]
        for thread in threads:
            thread.start()
        texts = []
        for _ in range(4):
            with pydflash2.load(tiny_target, tiny_drafter, n_ctx=256) as llm:
                texts.append(llm.generate([7, 9, 11], max_tokens=64).tokens)
        stop.set()
        for thread in threads:
            thread.join()
        expected.append(texts)
    assert expected[0] == expected[1]


def test_wrong_files(tiny_target: Path, tiny_drafter: Path, smollm_target: Path) -> None:
    with pytest.raises(pydflash2.ModelFileError, match="gone"):
        pydflash2.plan("gone.gguf")
    with pytest.raises(pydflash2.ModelFormatError, match="swap the two files"):
        pydflash2.plan(tiny_drafter)
    with pytest.raises(pydflash2.ModelFormatError, match="not a DFlash drafter"):
        pydflash2.plan(tiny_target, tiny_target)
    with pytest.raises(pydflash2.MismatchError):
        pydflash2.plan(smollm_target, tiny_drafter)
    with pytest.raises(pydflash2.InvalidArgumentError, match="max_bytes"):
        pydflash2.plan(tiny_target, max_bytes=0)
    with pytest.raises(pydflash2.InvalidArgumentError, match="n_ctx"):
        pydflash2.plan(tiny_target, n_ctx=0)
    with pytest.raises(pydflash2.InvalidArgumentError, match="window"):
        pydflash2.plan(tiny_target, tiny_drafter, window=2**24)

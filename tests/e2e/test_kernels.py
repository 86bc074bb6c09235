"""The kernels: the text stays the model's, they can be switched off, and they say what they do.

They register once per process and before its first model, so much of this runs in processes of its
own.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

import pydflash2
from tests.tools.every_type import write_of_type
from tests.tools.prompts import questions

N_PROMPTS = 6
N_TOKENS = 48

RMS_DIFFERENCE = 0.3
"""Both sides round activations to 8 bits, each in its own way. On SmolLM2 in Q4_1 either is 0.12
away from the logits of exact activations (root mean square over the vocabulary, 60 prompts), and as
far from the other."""

GAP = 0.5
"""So the difference of two logits moves by 0.17 on average, and a text may take another way where
the best two are closer than three times that."""

requires_kernels = pytest.mark.skipif(
    pydflash2.enable_kernels().state != "active", reason="no kernels in this process"
)


def python(code: str, *arguments: str | Path, **environment: str) -> str:
    """Runs code in an interpreter of its own and returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
        cwd=Path(sys.executable).parent,  # not the source tree: -c puts this folder into sys.path
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def logits_after(session: pydflash2.Session, tokens: list[int]) -> npt.NDArray[np.float32]:
    session.rewind(0)
    session.prefill(tokens)
    context = ctypes.c_void_p(session.target.context_address)
    logits = llama_cpp.llama_get_logits_ith(context, -1)
    return np.ctypeslib.as_array(logits, (session.target.vocab.n_tokens,)).copy()


def continuation(session: pydflash2.Session, prompt: list[int]) -> list[int]:
    session.rewind(0)
    session.prefill(prompt)
    while session.n_tokens < len(prompt) + N_TOKENS:
        session.step(len(prompt) + N_TOKENS - session.n_tokens)
    return list(session.tokens[len(prompt) :])


@requires_kernels
def test_the_text_stays_the_models(smollm_target: Path) -> None:
    with (
        pydflash2.Target(smollm_target, n_ctx=256) as ours,
        pydflash2.Target(smollm_target, n_ctx=256, kernels=False) as stock,
        pydflash2.Session(ours, ignore_end=True) as session,
        pydflash2.Session(stock, ignore_end=True) as expected,
    ):
        gaps = []
        for question in questions(N_PROMPTS):
            prompt = stock.vocab.tokenize(question, add_special=True, parse_special=False)
            text, wanted = continuation(session, prompt), continuation(expected, prompt)
            if text != wanted:
                same = next(i for i in range(N_TOKENS) if text[i] != wanted[i])
                values = np.sort(logits_after(expected, prompt + wanted[:same]))
                gaps.append(float(values[-1] - values[-2]))
        print(f"{N_PROMPTS - len(gaps)} of {N_PROMPTS} texts identical; gaps: {sorted(gaps)}")
        assert all(gap < GAP for gap in gaps)
        difference = logits_after(session, prompt) - logits_after(expected, prompt)
        assert 0.0 < float(np.std(difference)) < RMS_DIFFERENCE


@requires_kernels
def test_memory_is_reported(
    smollm_target: Path, smollm_drafter: Path, tiny_target: Path, tiny_drafter: Path
) -> None:
    with pydflash2.load(smollm_target, smollm_drafter, n_ctx=256) as llm:
        stats = llm.stats()
        info = pydflash2.enable_kernels()
        assert llm.drafter is not None
        # the embeddings are the head too, and 4-bit weights stay 4-bit
        assert 25e6 < stats.target_copied_bytes < 35e6
        assert 85e6 < stats.target_packed_bytes < 110e6
        assert stats.drafter_packed_bytes == llm.drafter.info.packed_bytes > 1e6
        assert info.packed_bytes >= stats.target_packed_bytes + stats.drafter_packed_bytes
        assert info.copied_bytes >= stats.target_copied_bytes
        assert info.isa
        assert info.note == ""
        with pydflash2.load(tiny_target, tiny_drafter, kernels=False) as other:
            assert other.stats().target_packed_bytes == 0
            assert other.stats().drafter_packed_bytes == 0
            assert pydflash2.enable_kernels() == info
    assert pydflash2.enable_kernels().packed_bytes < info.packed_bytes


def write_mixture(path: Path, source: Path, kind: GGMLQuantizationType) -> Path:
    """The source's model with four experts per feed-forward layer, two for each token."""
    reader = GGUFReader(source)
    writer = GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        value = field.contents()
        if isinstance(value, list):
            writer.add_array(name, value)
        elif not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, value, field.types[0])
    writer.add_expert_count(4)
    writer.add_expert_used_count(2)
    random = np.random.default_rng(1)

    def add(name: str, values: npt.NDArray[np.float32]) -> None:
        writer.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)

    for tensor in reader.tensors:
        values = np.array(tensor.data)
        if ".ffn_" in tensor.name and "norm" not in tensor.name:
            noise = random.normal(size=(4, *values.shape)).astype(np.float32)
            add(tensor.name.replace(".weight", "_exps.weight"), values + 0.1 * noise)
            if ".ffn_gate." in tensor.name:
                router = random.normal(size=(4, values.shape[1])).astype(np.float32)
                add(tensor.name.replace("ffn_gate", "ffn_gate_inp"), router)
        elif values.ndim == 2 and "embd" not in tensor.name:
            add(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@requires_kernels
@pytest.mark.parametrize("kind", [GGMLQuantizationType.F32, GGMLQuantizationType.Q5_0])
def test_mixture_of_experts(tiny_target: Path, tmp_path: Path, kind: GGMLQuantizationType) -> None:
    path = write_mixture(tmp_path / "mixture.gguf", tiny_target, kind)
    with (
        pydflash2.Target(path, n_ctx=128) as ours,
        pydflash2.Target(path, n_ctx=128, kernels=False) as stock,
        pydflash2.Session(ours) as session,
        pydflash2.Session(stock) as expected,
    ):
        assert session.stats().target_packed_bytes > 100e3
        assert expected.stats().target_packed_bytes == 0
        for n_tokens in (1, 5, 60):
            tokens = [3 + i * 7 % 150 for i in range(n_tokens)]
            wanted = logits_after(expected, tokens)
            difference = logits_after(session, tokens) - wanted
            # llama.cpp's attention adds values up in half precision
            limit = 1e-2 if kind == GGMLQuantizationType.F32 else 0.05
            assert 0.0 < np.std(difference) < limit * np.std(wanted)


BUFFERS = """
import ctypes
import sys
import llama_cpp
import pydflash2

lines = []
callback = llama_cpp.llama_log_callback(lambda level, text, data: lines.append(text.decode()))
llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
pydflash2.enable_kernels()
parameters = llama_cpp.llama_model_default_params()
assert llama_cpp.llama_model_load_from_file(sys.argv[1].encode(), parameters)
marker = " model buffer size"
print(*(line.partition(marker)[0].split()[-1] for line in lines if marker in line))
"""


@requires_kernels
def test_what_llama_would_repack_is_held(tmp_path: Path) -> None:
    """Types without a kernel stay in the file's mapping, but for those that llama.cpp repacks on
    this CPU, in products that depend on the number of rows."""
    for type_name in ("q2_K", "q1_0", "iq3_s"):
        path = write_of_type(tmp_path / f"{type_name}.gguf", type_name)
        ours = python(BUFFERS, path).split()
        stock = python(BUFFERS, path, DF2_KERNELS="off").split()
        assert ("DFLASH2_PLAIN" in ours) == ("CPU_REPACK" in stock)
        assert "CPU_REPACK" not in ours
        assert "CPU_Mapped" in ours
        assert not any("DFLASH2" in name for name in stock)


RESIDENT = """
import sys
import pydflash2

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

with pydflash2.load(sys.argv[1], n_ctx=256, kernels=sys.argv[2] == "on") as llm:
    llm.generate("Hello", max_tokens=2)
    print(resident_bytes())
"""


@requires_kernels
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_are_not_in_memory_twice(smollm_target: Path) -> None:
    stock, ours = (int(python(RESIDENT, smollm_target, which)) for which in ("off", "on"))
    # the head is a copy of the embeddings (28 MB), which may be mapped whole when a row is read
    assert ours - stock < 40e6


LOCKED = """
import sys
import llama_cpp
import pydflash2

def megabytes(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key)) / 1000

pydflash2.enable_kernels()
llama = llama_cpp.Llama(sys.argv[1], n_ctx=256, use_mlock=sys.argv[2] == "yes", verbose=False)
print(megabytes("VmLck"), megabytes("VmRSS"))
"""


@requires_kernels
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_locked_weights_are_not_in_memory_twice(smollm_target: Path) -> None:
    """What llama.cpp has locked and nobody reads any more is given back; the embeddings stay."""
    (_, resident), (locked, resident_locked) = (
        map(float, python(LOCKED, smollm_target, which).split()) for which in ("no", "yes")
    )
    if locked == 0:
        pytest.skip("this process may not lock memory: raise `ulimit -l`")
    assert 25 < locked < 35
    assert resident_locked - resident < 40


SAVE = """
import sys
import llama_cpp
import pydflash2

print(pydflash2.enable_kernels().state)
parameters = llama_cpp.llama_model_default_params()
model = llama_cpp.llama_model_load_from_file(sys.argv[1].encode(), parameters)
llama_cpp.llama_model_save_to_file(model, sys.argv[2].encode())
"""


@requires_kernels
def test_a_saved_model_has_the_weights_it_was_loaded_from(
    smollm_target: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "saved.gguf"
    assert python(SAVE, smollm_target, saved).split()[-1] == "active"
    before = {tensor.name: tensor for tensor in GGUFReader(smollm_target).tensors}
    after = {tensor.name: tensor for tensor in GGUFReader(saved).tensors}
    assert set(after) == set(before)
    for name, tensor in before.items():
        assert after[name].tensor_type == tensor.tensor_type
        np.testing.assert_array_equal(after[name].data, tensor.data, err_msg=name)


STATE = """
import sys
import pydflash2

info = pydflash2.enable_kernels()
with pydflash2.load(sys.argv[1], sys.argv[2], n_ctx=256) as llm:
    stats = llm.stats()
    print(info.state, info.isa or "-")
    print(stats.target_packed_bytes > 0, stats.drafter_packed_bytes > 0)
"""


def test_switched_off_by_the_environment(tiny_target: Path, tiny_drafter: Path) -> None:
    printed = python(STATE, tiny_target, tiny_drafter, DF2_KERNELS="off")
    assert printed.split() == ["disabled", "-", "False", "False"]
    printed = python(STATE, tiny_target, tiny_drafter, DF2_KERNELS="on", DF2_FORCE_ISA="ref")
    assert printed.split() == ["active", "ref", "True", "True"]


REFUSED = """
import sys
import pydflash2

for make in (pydflash2.enable_kernels, lambda: pydflash2.load(sys.argv[1])):
    try:
        make()
    except pydflash2.Dflash2Error as error:
        print(type(error).__name__, error)
with pydflash2.load(sys.argv[1], n_ctx=256, kernels=False) as llm:
    llm.generate("a", max_tokens=1)
"""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"DF2_KERNELS": "on", "DF2_FORCE_ISA": "mmx"},
            "InvalidArgumentError DF2_FORCE_ISA names 'mmx'",
        ),
        ({"DF2_KERNELS": "no"}, "InvalidArgumentError DF2_KERNELS is 'no'"),
    ],
)
def test_impossible_wishes(tiny_target: Path, environment: dict[str, str], expected: str) -> None:
    first, second = python(REFUSED, tiny_target, **environment).splitlines()
    assert first == second
    assert first.startswith(expected)


LOGITS = """
import ctypes, hashlib, sys
import llama_cpp
import pydflash2

with pydflash2.Target(sys.argv[1], n_ctx=64, n_threads=int(sys.argv[2])) as target:
    with pydflash2.Session(target, ignore_end=True) as session:
        session.prefill([504, 282, 260, 1030, 314])
        session.step()
        logits = llama_cpp.llama_get_logits_ith(ctypes.c_void_p(target.context_address), -1)
        values = ctypes.string_at(logits, 4 * target.vocab.n_tokens)
        print(hashlib.sha256(values).hexdigest())
"""


OFF_FOR_A_MODEL = """
import ctypes, hashlib, sys
import llama_cpp
import pydflash2

def digest(kernels):
    with pydflash2.Target(sys.argv[1], n_ctx=512, n_threads=2, kernels=kernels) as target:
        with pydflash2.Session(target, None, n_draft=0) as session:
            session.prefill(list(range(1000, 1300)))
            logits = llama_cpp.llama_get_logits_ith(ctypes.c_void_p(target.context_address), -1)
            return hashlib.sha256(ctypes.string_at(logits, 4 * target.vocab.n_tokens)).hexdigest()

first = digest(True)
print(digest(False))
assert digest(True) == first
"""


def test_a_model_with_kernels_off_is_all_llama_cpps(smollm_target: Path) -> None:
    """Weights, attention and all, next to one with kernels: the bits of a process without them."""
    beside = python(OFF_FOR_A_MODEL, smollm_target)
    assert python(OFF_FOR_A_MODEL, smollm_target, DF2_KERNELS="off") == beside


@requires_kernels
def test_every_instruction_set_gives_the_same_bits(smollm_target: Path) -> None:
    best = python(LOGITS, smollm_target, "2")
    assert python(LOGITS, smollm_target, "2", DF2_FORCE_ISA="ref") == best


IN_LLAMA_CPP = """
import sys
import llama_cpp
import pydflash2

is_early = sys.argv[3] == "early"
if is_early:
    pydflash2.enable_kernels()
llama = llama_cpp.Llama(sys.argv[1], n_ctx=256, verbose=False)
with pydflash2.attach(llama, sys.argv[2]) as llm:
    llm.generate("ab", max_tokens=4)
    stats = llm.stats()
    info = pydflash2.enable_kernels()
    print(info.state, bool(info.note))
    print(stats.target_packed_bytes > 0, stats.drafter_packed_bytes > 0)
"""


@requires_kernels
def test_in_models_of_llama_cpp_python(tiny_target: Path, tiny_drafter: Path) -> None:
    printed = python(IN_LLAMA_CPP, tiny_target, tiny_drafter, "early")
    assert printed.split() == ["active", "False", "True", "True"]
    printed = python(IN_LLAMA_CPP, tiny_target, tiny_drafter, "late")
    assert printed.split() == ["late", "True", "False", "True"]


def test_command_line(smollm_target: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pydflash2"]
    options = ["-n", "4", "--no-kernels", "-m", str(smollm_target), "Hello"]
    done = subprocess.run(
        [*command, "generate", *options], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()

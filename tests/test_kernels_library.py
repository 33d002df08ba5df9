"""Loading the kernels: every variant of the machine, and what a wrong setting says."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import heartlm.kernels
import heartlm.kernels.library as library_module
from heartlm.errors import HeartlmError
from heartlm.kernels.gather import gather_codes, gather_windows
from heartlm.kernels.library import (
    VARIANTS,
    _check_sources,
    chosen_variant,
    kernel,
    library,
    prototypes,
    struct_fields,
    struct_of,
    using,
    variants,
)
from tests.kernel_references import each_variant, gather_windows_reference


def test_the_library_is_built_here() -> None:
    assert variants()
    assert variants() == VARIANTS[: len(variants())]


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.sampled_from([(), (1,), (3,), (2, 2)]))
def test_gathering_windows_is_the_same_in_every_variant(seed: int, width: int, facets: tuple[int, ...]) -> None:
    random = np.random.default_rng(seed)
    corpus = random.integers(0, 60_000, (50, *facets)).astype(np.uint16)
    length = random.integers(1, width + 1, 7)
    first = random.integers(0, 50 - length + 1)
    expected = np.empty((7, width, *facets), np.uint16)
    gather_windows_reference(corpus, first, length, width, expected)
    for _ in each_variant():
        assert np.array_equal(gather_windows(corpus, first, length, width), expected)
        wide = gather_codes(corpus.reshape(50, -1), first, length, width)
        assert wide.dtype == np.int64 and np.array_equal(wide.reshape(expected.shape), expected)


@pytest.mark.parametrize(("first", "length"), [(-1, 2), (9, 2), (10, 1), (0, 0)])
@pytest.mark.parametrize("variant", variants())
def test_a_window_outside_the_corpus_is_not_gathered(variant: str, first: int, length: int) -> None:
    corpus = np.arange(10, dtype=np.uint16)
    with using(variant), pytest.raises(AssertionError, match="window 1 lies outside"):
        gather_windows(corpus, np.array([0, first]), np.array([3, length]), 3)
    with using(variant), pytest.raises(AssertionError, match="window 1 lies outside"):
        gather_codes(corpus[:, None], np.array([0, first]), np.array([3, length]), 3)


def test_arrays_are_checked_although_others_are_given_by_their_addresses() -> None:
    checking, by_address = kernel("draws"), kernel("draws", by_address=True)
    first, second = np.zeros((2, 4), np.uint64)
    checking(1, 0, 0, 0, 4, first)
    by_address(1, 0, 0, 0, 4, second.ctypes.data)
    assert first.any() and np.array_equal(first, second)


def test_the_prototypes_are_those_of_the_sources() -> None:
    package = Path(heartlm.kernels.library.__file__).parent
    sources = "".join(path.read_text() for path in sorted(package.parent.rglob("c/*.c")))
    defined = re.findall(r"^(\w+) HEARTLM\((\w+)\)\(([^{;]*)\) \{", sources, re.MULTILINE)
    plain = {name: (result, re.sub(r"\s+|\*restrict ", lambda found: found[0][0].strip() or " ", arguments))
             for result, name, arguments in defined}  # fmt: skip
    assert prototypes() == {
        name: (result, [each.strip() for each in arguments.split(",")]) for name, (result, arguments) in plain.items()
    }


@pytest.mark.parametrize("struct", ["plan", "trunk", "seconds", "tokens", "network", "history"])
def test_the_structs_are_those_of_the_sources(struct: str) -> None:
    sources = "".join(path.read_text() for path in sorted(Path(library_module.__file__).parents[1].rglob("c/*.[ch]")))
    plain = re.sub(r"/\*.*?\*/", "", sources, flags=re.DOTALL).replace("[2 * MOST_LAYERS]", "[8]")
    for length, number in {"INTERVALS + 1": 7, "CLASSIFIED * CLASSES": 6}.items():
        plain = plain.replace(f"[{length}]", f"[{number}]")
    plain = plain.replace("struct part qrs, t, p, active;", "int64_t qrs[2], t[2], p[2], active[2];")
    fields = struct_fields(struct, plain)
    assert fields and [(name, str(kind)) for name, kind in struct_fields(struct)] == [
        (name, str(kind)) for name, kind in fields
    ]


def test_a_struct_is_filled_by_the_names_of_its_fields() -> None:
    odds = np.array([1.5, 2.5])
    values = {name: odds if name == "af" else None for name, _ in struct_fields("streams")} | {"num": 3}
    filled = struct_of("streams", values)
    assert (filled.num, filled.af, filled.valid) == (3, odds.ctypes.data, None)
    with pytest.raises(AssertionError, match=r"streams: \{'num'\}"):
        struct_of("streams", {name: value for name, value in values.items() if name != "num"})
    for wrong in (odds.astype(np.float32), np.zeros((2, 2))[:, 0]):
        with pytest.raises(AssertionError, match="given to a kernel of float64"):
            struct_of("streams", values | {"af": wrong})


SCRIPT = "from heartlm.kernels.library import kernel; print(kernel('gather_windows'), kernel('gather_windows'))"


def loading(setting: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HEARTLM_KERNELS": setting}
    return subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("variant", variants())
def test_a_variant_can_be_asked_for(variant: str) -> None:
    assert loading(variant).stdout.startswith("<_FuncPtr")


def test_a_block_uses_a_variant_and_what_comes_after_it_the_best() -> None:
    names = [kernel("gather_windows").__name__ for _ in each_variant()]
    assert [*names, kernel("gather_windows").__name__] == [
        f"gather_windows_{name}" for name in (*variants(), chosen_variant())
    ]


def test_the_variants_are_those_that_linux_says_the_processor_runs() -> None:
    """Whatever compiler built the library: zig's answers no to every `__builtin_cpu_supports`."""
    stated = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    needs = {"avx2": {"avx2", "fma", "bmi2"}, "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"}}
    runs = [variant for variant, flags in needs.items() if flags <= set(stated)]
    assert variants() == ("portable", *runs)


def test_a_library_of_other_sources_is_refused(tmp_path: Path) -> None:
    """A library older than the Python files that call it would read arguments that nobody passed."""
    (built,) = (folder / "lib" / "libheartlm_kernels.so" for folder in map(Path, heartlm.kernels.__path__)
                if (folder / "lib").is_dir())  # fmt: skip
    content = built.read_bytes()
    library.cache_clear()
    digest = library().heartlm_sources()
    assert content.count(digest) == 1
    (tmp_path / "old.so").write_bytes(content.replace(digest, bytes(reversed(digest))))
    with pytest.raises(HeartlmError, match=r"old\.so: built from other sources.*make kernels"):
        _check_sources(ctypes.CDLL(str(tmp_path / "old.so")), tmp_path / "old.so")


def test_a_wrong_setting_is_named() -> None:
    result = loading("sse9")
    assert "HEARTLM_KERNELS: 'sse9' found" in result.stderr


STORE = """#include "vector.h"
int main(int one, char **arguments) {
    float to[4 * LANES];
    (void)arguments;
    for (int64_t count = 0; count <= 4 * LANES; count++) {
        for (int j = 0; j < 4 * LANES; j++) to[j] = -1;
        store_first(to, all_lanes((float)one), count);
        for (int j = 0; j < 4 * LANES; j++)
            if (to[j] != (j < count && j < LANES ? 1 : -1)) return 1;
    }
    return 0;
}
"""
FLAGS = {"portable": (), "avx2": ("-mavx2",), "avx512": ("-mavx512f", "-mavx512dq")}


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
@pytest.mark.parametrize("variant", variants())
def test_a_vector_is_stored_once_however_much_is_left_of_a_row(tmp_path: Path, variant: str) -> None:
    (tmp_path / "store.c").write_text(STORE)
    headers = Path(library_module.__file__).with_name("c")
    program = tmp_path / "store"
    subprocess.run(["cc", "-O1", *FLAGS[variant], "-I", headers, tmp_path / "store.c", "-o", program], check=True)
    assert subprocess.run([program]).returncode == 0

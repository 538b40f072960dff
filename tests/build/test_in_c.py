"""Libraries in programs of C, compiled by the system's compiler: with sanitisers, and with pages around every
array that may not be touched.
"""

import shutil
import subprocess
from collections.abc import Sequence
from doctest import DocTestParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from same_bits import assert_same_bits
from zoo import rnn_of, sequences

import stepnet as sn
from stepnet.build import Build, build, load
from stepnet.build.header import C_TYPES
from stepnet.compiler.values import leaves
from tests.build.libraries import LENGTHS, given
from tests.build.test_bits import STRIDED, pooled, strided

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
COMPILER = shutil.which("cc")
MUSL = shutil.which("musl-gcc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler, cc")
STRICT = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-g"]
SANITISED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def compiled(
    source: Path, made: Build, *flags: str, shared: bool = False, compiler: str | None = COMPILER
) -> Path:
    """A program of a source and a library."""
    folder = made.header.parent
    program = folder / f"{source.stem}_{'shared' if shared else 'static'}"
    library = (
        [f"-L{folder}", f"-l:{made.shared.name}", f"-Wl,-rpath,{folder}"] if shared else [str(made.static)]
    )
    command = [
        str(compiler),
        *STRICT,
        *flags,
        str(source),
        f"-I{folder}",
        *library,
        "-lpthread",
        "-o",
        str(program),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def output(program: Path, *arguments: str) -> str:
    """The text that a program prints."""
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("weights", ["inside", "beside"])
def test_wrong_calls_memory_and_threads(weights: str, tmp_path: Path):
    made = build(rnn_of("gru", 8, 16), tmp_path, name="gru", weights=weights, inputs=8)
    flags = list(SANITISED)
    if made.weights is not None:
        other = build(rnn_of("gru", 8, 17), tmp_path / "other", name="gru", weights=weights, inputs=8)
        assert other.weights is not None
        flags += [f'-DBESIDE="{made.weights}"', f'-DOTHER="{other.weights}"']
    assert output(compiled(HERE / "checks.c", made, *flags)) == "done\n"


ONE_CALL = """
#include <stdio.h>
#include "gru.h"

int main(void)
{
    gru_context *context;
    int64_t offsets[] = {0, 2};
    float x[16], y[32], final[16];
    for (int i = 0; i < 16; i++) x[i] = (float)i / 8.0f;
    if (gru_new(&context) || gru_run(context, 1, offsets, x, NULL, y, final)) return 1;
    for (int i = 0; i < 32; i++) printf("%.9g ", y[i]);
    gru_free(context);
    return 0;
}
"""


@pytest.mark.skipif(MUSL is None, reason="musl-gcc is missing, of Debian's package musl-tools")
@pytest.mark.parametrize("shared", [False, True])
def test_libraries_run_with_musl(shared: bool, tmp_path: Path):
    rnn = rnn_of("gru", 8, 16)
    made = build(rnn, tmp_path, name="gru", inputs=8)
    (tmp_path / "call.c").write_text(ONE_CALL, "utf-8")
    program = compiled(tmp_path / "call.c", made, shared=shared, compiler=MUSL)
    outputs, _ = rnn(np.arange(16, dtype="f4").reshape(1, 2, 8) / np.float32(8))
    assert_same_bits(np.array(output(program).split(), "f4"), outputs.ravel())


def test_the_shared_library_and_an_ordinary_program(tmp_path: Path):
    made = build(rnn_of("gru", 8, 16), tmp_path, name="gru", inputs=8)
    assert output(compiled(HERE / "checks.c", made, shared=True)) == "done\n"


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler, c++")
@pytest.mark.parametrize("weights", ["inside", "beside"])
def test_the_header_is_of_the_oldest_cplusplus(weights: str, tmp_path: Path):
    made = build(rnn_of("gru", 8, 16), tmp_path, name="gru", weights=weights, inputs=8)
    flags = ["-std=c++98", "-pedantic", "-Wall", "-Wextra", "-Werror", "-Wno-long-long", "-fsyntax-only"]
    done = subprocess.run(
        ["c++", *flags, "-x", "c++", "-include", str(made.header), "-"],
        input="int code = GRU_OK;\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_example(tmp_path: Path):
    file = ROOT / "src/stepnet/cli/data/speaker_gru.safetensors"
    layer: Any = sn.load(file, recurrent_only=True)
    made = build(layer, tmp_path, name="speaker_gru")
    printed = output(compiled(ROOT / "examples" / "speaker_stream.c", made, *SANITISED)).splitlines()
    assert printed[:2] == ["steps 20, outputs per step 64", "the same in pieces: yes"]
    values = ((np.arange(20 * 12) % 17) / 8 - 1).astype("float32").reshape(20, 12)
    _, final = layer(sn.Ragged(values, (np.array([0, 13, 20]),)), engine="llvm")
    assert_same_bits(np.array(printed[2:], "float32"), final[1, :4])


PAGE = """
#include <stdio.h>
#include <string.h>
@INCLUDED@

int main(void)
{
    enum { pieces = 3 };
    static float x[@STEPS@ * 8], y[@STEPS@ * 16];
    for (int i = 0; i < @STEPS@ * 8; i++) x[i] = (float)(i % 17) / 8.0f - 1.0f;
@CALL@
    for (int i = 0; i < @PRINTED@; i++) printf("%.9g ", y[i]);
    return code;
}
"""


def test_the_calls_of_the_page_compile_and_give_the_bits_of_python(tmp_path: Path):
    text, names = (ROOT / "docs/deploy.md").read_text("utf-8"), dict[str, Any]()
    for example in DocTestParser().get_examples(text):
        exec(example.source, names)
    values = ((np.arange(35 * 8) % 17) / 8 - 1).astype("float32").reshape(35, 8)
    right = {
        "speech": names["speech"](sn.Ragged(values, (np.array([0, 20, 35]),)), engine="llvm").values,
        "live": names["speech"](values[None, :30], engine="llvm")[0],
    }
    blocks = [part.partition("```")[0] for part in text.split("```c\n")[1:]]
    for block, made in zip(blocks, (names["made"], names["made_of_stream"]), strict=True):
        included, _, call = block.partition("\n")
        expected = right[made.header.stem]
        replaced = {"INCLUDED": included, "CALL": call, "STEPS": len(expected), "PRINTED": expected.size}
        program = PAGE
        for key, value in replaced.items():
            program = program.replace(f"@{key}@", str(value))
        (tmp_path / f"{made.header.stem}.c").write_text(program, "utf-8")
        printed = output(compiled(tmp_path / f"{made.header.stem}.c", made, *SANITISED)).split()
        assert_same_bits(np.array(printed, "float32"), expected.ravel())


# ---- every array between pages that may not be touched -----------------------------------------------------

HARNESS = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "model.h"

/* Memory of so many bytes, with pages around it that end the program: it ends at one, or begins at one. */
static void *guarded(size_t size, int at_end)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), held = (size + page - 1) / page * page;
    char *memory = mmap(NULL, held + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE)) exit(3);
    if (mprotect(memory + page + held, page, PROT_NONE)) exit(3);
    memset(memory + page, 0x7f, held);
    return memory + page + (at_end ? held - size : 0);
}

static void *array(const char *folder, const char *name, int at_end)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.in", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) exit(4);
    size_t size = (size_t)ftell(file);
    rewind(file);
    void *memory = guarded(size, at_end);
    if (fread(memory, 1, size, file) != size || fclose(file)) exit(4);
    return memory;
}

static void put(const char *folder, const char *name, int at_end, const void *memory, size_t size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.%d", folder, name, at_end);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(memory, 1, size, file) != size || fclose(file)) exit(5);
}

int main(int count, char **folders)
{
    model_context *context;
    if (model_new(&context)) return 1;
    for (int number = 1; number < count; number++)
        for (int at_end = 0; at_end < 2; at_end++) {
            const char *folder = folders[number];
            int64_t *offsets = array(folder, "offsets", at_end), rows, steps;
            memcpy(&rows, array(folder, "rows", 0), sizeof rows);
            steps = rows ? offsets[rows] : 0;
            (void)steps;
@COUNTED@
@DECLARED@
            if (model_run(context, rows, offsets, @NAMES@)) return 2;
@PUT@
        }
    model_free(context);
    return 0;
}
"""


def harness(made: Build) -> str:
    """The program that runs a library on arrays in files."""
    about = load(made.shared, trust=True).about
    declared, put, counted = list[str](), list[str](), list[str]()
    for each in about.arrays:
        type_, size = C_TYPES[each.dtype], int(np.prod(each.shape, dtype=int))
        if each.kind in ("output", "final"):
            count = "rows" if each.by_row else "steps"
            if each.is_counted:
                count = f"{each.name}_count"
                own = f"model_{each.name}_steps(offsets[i + 1] - offsets[i])"
                counted.append(f"int64_t {count} = 0;\nfor (int i = 0; i < rows; i++) {count} += {own};")
            bytes_ = f"(size_t){count} * {size} * sizeof({type_})"
            declared.append(f"{type_} *{each.name} = guarded({bytes_}, at_end);")
            put.append(f'put(folder, "{each.name}", at_end, {each.name}, {bytes_});')
        else:
            declared.append(f'{type_} *{each.name} = array(folder, "{each.name}", at_end);')
    names = ", ".join(each.name for each in about.arrays)
    return (
        HARNESS.replace("@DECLARED@", "\n".join(declared))
        .replace("@COUNTED@", "\n".join(counted))
        .replace("@PUT@", "\n".join(put))
        .replace("@NAMES@", names)
    )


MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "pooled": (sn.Graph(pooled, np.random.default_rng(5).normal(size=(16, 3)).astype("float32")), ()),
    "strided": (sn.Graph(strided, STRIDED), ()),
    "stack": (sn.Stack([rnn_of("lstm", 8, 5), rnn_of("gru", 5, 7)]), (5, 5, 7)),
}


@pytest.mark.parametrize("name", MODELS)
def test_bits_within_arrays_between_guarded_pages(name: str, tmp_path: Path):
    model, memories = MODELS[name]
    made = build(model, tmp_path, inputs=8)
    library = load(made.shared, trust=True)
    (tmp_path / "main.c").write_text(harness(made))
    program = compiled(tmp_path / "main.c", made, *SANITISED)
    folders, expected = list[Path](), list[Any]()
    for number, lengths in enumerate(LENGTHS):
        x = sequences(lengths, 8, seed=number)
        h = [np.random.default_rng(number).normal(size=(len(x), n)).astype("float32") for n in memories]
        initial = ({"h": h[0], "c": h[1]}, h[2]) if h else None
        arguments = model(x, initial, engine="llvm") if h else model(x, engine="llvm")
        expected.append([getattr(leaf, "values", leaf) for leaf in leaves(arguments)])
        folders.append(tmp_path / str(number))
        folders[-1].mkdir()
        arrays = {**given(library, x, initial), "offsets": x.offsets[0], "rows": np.array([len(x)])}
        for key, array in arrays.items():
            (folders[-1] / f"{key}.in").write_bytes(np.asarray(getattr(array, "values", array)).tobytes())
    assert output(program, *map(str, folders)) == ""
    names = [each.name for each in library.about.arrays if each.kind in ("output", "final")]
    for folder, right in zip(folders, expected, strict=True):
        for at_end in (0, 1):
            assert_written(folder, names, right, at_end)


def assert_written(folder: Path, names: Sequence[str], right: Sequence[Any], at_end: int) -> None:
    """Asserts that the program wrote these arrays."""
    for name, array in zip(names, right, strict=True):
        made = np.frombuffer((folder / f"{name}.{at_end}").read_bytes(), array.dtype)
        assert_same_bits(made, array.reshape(-1))

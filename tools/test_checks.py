"""Each check finds what it is for in a small tree made to offend, and nothing in its clean twin."""

from pathlib import Path

import pytest

from tools.checks.formatting import clang_format, ruff_check, ruff_format
from tools.checks.layers import layers
from tools.checks.paths import machine_paths
from tools.checks.placeholders import placeholders
from tools.checks.size import LIMIT, file_size
from tools.checks.twins import twins
from tools.checks.variants import variant_names
from tools.sources import ROOT, files

OPERATIONS = '    {"gated_delta_net", options(kScale), kGatedDeltaNetPorts},\n'
GDN = """struct Gdn {
  static constexpr Op op = Op::kGatedDeltaNet;
  static constexpr const char* name = "gdn";
};
static_assert(Recurrence<Gdn>);
"""


@pytest.fixture
def tree(tmp_path):
    """Writes files of a tree: tree({"src/core/a.h": "text"}) returns its root."""

    def write(texts: dict[str, str]) -> Path:
        for name, text in texts.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


HEADERS = {
    "include/deltaworks/types.h": "",
    "include/deltaworks/c_api.h": "",
    "src/core/threads.h": "",
    "src/problem/ports.h": "",
    "src/variants/traits.h": "",
    "src/reference/gradient.h": "",
    "src/registry/engine.h": "",
    "src/engines/cpu/simd.h": "",
    "src/engines/cuda/launch.h": "",
    "src/c_api/convert.h": "",
    "bindings/torch/call.h": "",
}


@pytest.mark.parametrize(
    ("file", "include", "problem"),
    [
        ("include/deltaworks/plan.h", '"core/threads.h"', "include may not see core"),
        ("src/core/x.cc", '"problem/ports.h"', "core may not see problem"),
        ("src/problem/x.cc", '"variants/traits.h"', "problem may not see variants"),
        ("src/variants/x.h", '"registry/engine.h"', "variants may not see registry"),
        ("src/registry/x.cc", '"engines/cpu/simd.h"', "registry may not see engines"),
        ("src/engines/cpu/x.cc", '"reference/gradient.h"', "engines may not see reference"),
        ("src/engines/cpu/x.cc", '"engines/cuda/launch.h"', "an engine may not see another"),
        ("src/graph/x.cc", '"engines/cpu/simd.h"', "graph may not see engines"),
        ("src/c_api/x.cc", '"bindings/torch/call.h"', "no such file"),
        ("src/c_api/x.cc", "<torch/torch.h>", "torch and Python headers"),
        ("include/deltaworks/x.h", "<cuda_runtime.h>", "CUDA headers"),
        ("src/engines/cpu/x.cc", "<cuda/ptx>", "CUDA headers"),
        ("src/core/x.cc", "<Python.h>", "torch and Python headers"),
        ("tests/cpp/x.cc", "<ATen/ATen.h>", "torch and Python headers"),
        ("bindings/torch/x.cc", '"deltaworks/types.h"', "bindings see deltaworks/c_api.h alone"),
        ("bindings/torch/x.cc", '"core/threads.h"', "bindings see deltaworks/c_api.h alone"),
        ("src/stray/x.cc", '"core/threads.h"', "no place in the order"),
    ],
)
def test_layers_finds(tree, file, include, problem):
    root = tree({**HEADERS, file: f"// A line.\n#include {include}\n"})
    (found,) = layers(root)
    assert found.startswith(f"{file}:2: ")
    assert problem in found


def test_layers_accepts_the_order(tree):
    allowed = {
        "src/core/x.cc": ['"core/threads.h"', '"deltaworks/types.h"', "<vector>"],
        "src/problem/x.cc": ['"core/threads.h"'],
        "src/reference/x.cc": ['"variants/traits.h"', '"registry/engine.h"', '"gradient.h"'],
        "src/registry/x.cc": ['"problem/ports.h"', '"variants/traits.h"'],
        "src/engines/cpu/x.cc": ['"registry/engine.h"', '"engines/cpu/simd.h"'],
        "src/c_api/x.cc": ['"registry/engine.h"', '"deltaworks/c_api.h"'],
        "bindings/torch/x.cc": ['"deltaworks/c_api.h"', '"call.h"', "<torch/torch.h>"],
        "tests/cpp/x.cc": ['"engines/cpu/simd.h"', '"reference/gradient.h"'],
    }
    texts = {
        name: "".join(f"#include {include}\n" for include in includes)
        for name, includes in allowed.items()
    }
    assert layers(tree({**HEADERS, **texts})) == []


def test_file_size(tree):
    root = tree({"src/a.cc": "x;\n" * LIMIT, "python/b.py": "x\n" * (LIMIT + 1)})
    assert file_size(root) == ["python/b.py: 701 lines, at most 700 are allowed"]


def body(first: int, count: int) -> str:
    return "".join(f"  int name_{i} = {i};\n" for i in range(first, first + count))


def test_twins_finds_shared_lines(tree):
    root = tree({"src/a.cc": body(0, 120), "src/b.cc": body(40, 120)})
    assert twins(root) == ["src/a.cc and src/b.cc share 67% of their lines"]


def test_twins_counts_against_the_shorter_file(tree):
    assert twins(tree({"src/a.cc": body(0, 110), "src/b.cc": body(0, 600)})) != []


def test_twins_leaves_alone_what_does_not_count(tree):
    header = "".join(f"#include <h{i}>\n// line {i}\n}}\n" for i in range(100))
    root = tree(
        {
            "src/half.cc": header + body(0, 120),
            "src/other.cc": header + body(60, 120),
            "src/short.cc": body(0, 90),
        }
    )
    assert twins(root) == []


@pytest.mark.parametrize(
    "line",
    [
        "template struct Forward<Gdn>;",
        'if (name == "gdn_cpu") return;',
        "case Op::kGatedDeltaNet:",
        'throw "gated_delta_net: no";',
    ],
)
def test_variant_names_finds(tree, line):
    root = tree(
        {
            "src/variants/gdn.h": GDN,
            "src/problem/ports.cc": OPERATIONS,
            "src/engines/cpu/engine.cc": f"\n{line}\n",
        }
    )
    (found,) = variant_names(root)
    assert found.startswith("src/engines/cpu/engine.cc:2: names the variant")


def test_variant_names_accepts(tree):
    texts = {
        "src/variants/gdn.h": GDN,
        "src/variants/list.h": "using Variants = std::tuple<Gdn>;\n",
        "src/engines/cpu/engine.cc": "// As in gdn_cpu.\n/* Gdn */ int Gdnx;\n",
        "src/engines/cuda/instances/gdn.cu": "template struct Forward<Gdn>;\n",
        "src/c_api/c_api.cc": "Op::kGatedDeltaNet;\n",
    }
    assert variant_names(tree(texts)) == []


def test_variant_names_needs_variants(tree):
    assert variant_names(tree({"src/engines/cpu/a.cc": ""})) != []


def test_variant_words_of_this_tree_are_found():
    from tools.checks.variants import variant_words

    assert {"Gdn", "gdn", "kGatedDeltaNet", "gated_delta_net"} <= variant_words(ROOT)


@pytest.mark.parametrize("folder", ["home", "root", "Users", "tmp"])
def test_machine_paths_finds(tree, folder):
    root = tree({"docs/a.md": f"Text.\nSee /{folder}/somebody/x.\n"})
    assert machine_paths(root) == [f"docs/a.md:2: /{folder}/somebody"]


def test_machine_paths_accepts(tree):
    text = "python/deltaworks/home/x ${ROOT}/home/y https://a.b/home/c /usr/include\n"
    assert machine_paths(tree({"docs/a.md": text})) == []


def test_clang_format(tree):
    style = (ROOT / ".clang-format").read_text()
    root = tree({".clang-format": style, "src/good.cc": "int a = 1;\n"})
    assert clang_format(root) == []
    tree({"src/bad.cc": "int  a=1;\n"})
    assert clang_format(root)[0].startswith("src/bad.cc:1:")


def test_ruff_format(tree):
    root = tree({"python/good.py": "a = 1\n"})
    assert ruff_format(root) == []
    tree({"python/bad.py": "a=1\n"})
    assert ruff_format(root) == ["Would reformat: python/bad.py"]


def test_ruff_check(tree):
    root = tree({"python/good.py": "a = 1\n"})
    assert ruff_check(root) == []
    tree({"python/bad.py": "import os\n"})
    assert ruff_check(root)[0].startswith("python/bad.py:1:8: F401")


def test_files_leaves_out_what_is_not_source(tree):
    root = tree(
        {
            "README.md": "",
            "src/a.cc": "",
            "src/__pycache__/a.py": "",
            "python/.hidden/a.py": "",
            "python/deltaworks/lib/libdeltaworks.so": "",
            "build/b.cc": "",
            "elsewhere/c.cc": "",
        }
    )
    assert list(files(root)) == [Path("README.md"), Path("src/a.cc")]


def test_placeholders_finds(tree):
    place = "@" + "MINUTES@"
    assert placeholders(tree({"docs/a.md": f"one\ntakes {place} minutes\n"})) == [
        f"docs/a.md:2: {place}"
    ]


def test_placeholders_accepts(tree):
    files = {"docs/a.md": "q@32x1 a@b.c @mark.skip\n", "cmake/a.cmake.in": "@" + "VERSION@\n"}
    assert placeholders(tree(files)) == []

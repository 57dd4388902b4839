"""What the engines take, asked of the engines themselves: the tables of docs/reference.

    python -m tools.support_table           prints them
    python -m tools.support_table --write   puts them into the pages, between their markers

The tables are those of tensors of the CPU. Each row is a feature with a problem that needs it; each
cell is the verdict of an engine's support
column on that problem, so that a condition cannot change without its table.
"""

import argparse
import sys

from deltaworks import Problem, _library
from tools.sources import ROOT

PAGES = {"gdn": ROOT / "docs" / "reference" / "gated-delta-net.md"}
BEGIN, END = "<!-- support: begin -->", "<!-- support: end -->"
DIMS = "N2T64H4K64V64"
LARGEST_HEAD_DIM = 512  # of a valid problem
OF_ONE_PASS = ("pass", "overwrite_excludes_autograd")  # rules about what the other does not have

# Feature -> IO dtype, dims, options.
FEATURES = {
    "q k v in float32": ("fp32", DIMS, ""),
    "q k v in bfloat16": ("bf16", DIMS, ""),
    "q k v in float16": ("fp16", DIMS, ""),
    "q k v in float64": ("fp64", DIMS, ""),
    "g in bfloat16, float16": ("bf16", DIMS, ":g=bf16|:g=fp16"),
    "beta in the dtype of q": ("bf16", DIMS, ":beta=bf16"),
    "q grouped (HV = H n)": ("bf16", "N2T64H2HV4K64V64", ""),
    "v grouped (H = HV n), k with either": ("bf16", "N2T64H4HV2K64V64|N2T64H4HK2HV2K64V64", ""),
    "l2 norm of q and k": ("bf16", DIMS, ":l2norm"),
    "beta sigmoid, negative eigenvalues": ("bf16", DIMS, ":sigmoid|:sigmoid:neg"),
    "safe gate with a_log, dt_bias": ("bf16", DIMS, ":safe:a_log:dt_bias"),
    "linear gates": ("bf16", DIMS, ":linear"),
    "scale": ("bf16", DIMS, ":scale=0.5"),
    "initial state in float32, bfloat16, float16": (
        "bf16",
        DIMS,
        ":state|:state=bf16|:state=fp16",
    ),
    "final state": ("bf16", DIMS, ":final"),
    "strides of any kind": ("bf16", DIMS, ":q@8192x128x2|:q@0x0x0"),
    "no tokens, no sequences": ("bf16", "N2T0H4K64V64|N0T64H4K64V64", ""),
    "batch_invariant": ("bf16", DIMS, ":invariant"),
    "overwrite_initial_state": ("bf16", DIMS, ":state:overwrite"),
    "state_indices (pools)": ("bf16", DIMS, ":state:pool=8"),
    "state checkpoints": ("bf16", DIMS, ":every=64"),
}


def verdicts(text):
    return {verdict.plan_name: verdict for verdict in Problem(text).explain()}


def answer(text, plan):
    """How `plan` takes a problem: "yes", "pinned" (only if it is named) or ""."""
    try:
        Problem(text)
    except ValueError:
        if _library.last_rule() not in OF_ONE_PASS:
            raise
        return ""
    if verdicts(text)[plan].accepts:
        return "yes"
    return "pinned" if verdicts(f"{text}:plan={plan}")[plan].accepts else ""


def takes(variant, pass_, feature, plan):
    """The least of the answers to the feature's problems."""
    io, dims, options = feature
    answers = [
        answer(f"{variant}:{pass_}:{io}:{d}{o}", plan)
        for d in dims.split("|")
        for o in options.split("|")
    ]
    return min(answers, key=("", "pinned", "yes").index)


def cell(variant, feature, plan):
    forward, backward = (takes(variant, pass_, feature, plan) for pass_ in ("fwd", "bwd"))
    if forward == backward:
        return forward or "no"
    return f"forward {forward or 'no'}, backward {backward or 'no'}"


def head_dims(variant, axis, plan):
    """The sizes of one head dimension that a plan takes, as ranges."""
    other = "V" if axis == "K" else "K"
    sizes = [
        size
        for size in range(1, LARGEST_HEAD_DIM + 1)
        if all(
            answer(f"{variant}:{pass_}:bf16:N2T64H4{axis}{size}{other}64", plan)
            for pass_ in ("fwd", "bwd")
        )
    ]
    ranges = []
    for size in sizes:
        if ranges and ranges[-1][1] == size - 1:
            ranges[-1][1] = size
        else:
            ranges.append([size, size])
    return ", ".join(f"{a} to {b}" if a != b else str(a) for a, b in ranges) or "none"


def table(variant):
    """Markdown of one operation: features by plans, then every plan's conditions."""
    found = verdicts(f"{variant}:fwd:fp32:{DIMS}")
    plans = [plan for plan in found if "tensors must be in CPU memory" in found[plan].conditions]
    lines = [
        "| | " + " | ".join(f"`{plan}`" for plan in plans) + " |",
        "|---|" + "---|" * len(plans),
    ]
    for name, feature in FEATURES.items():
        cells = [cell(variant, feature, plan) for plan in plans]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for axis, name in (("K", "key dimension"), ("V", "value dimension")):
        cells = [head_dims(variant, axis, plan) for plan in plans]
        lines.append(f"| {name} {axis} | " + " | ".join(cells) + " |")
    for plan in plans:
        lines += ["", f"`{plan}` asks that", ""]
        lines += [f"* {condition}" for condition in found[plan].conditions]
    return "\n".join(lines)


def with_table(text, variant):
    """A page's text with its table made anew."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table(variant)}\n{END}{after}"


def main():
    parser = argparse.ArgumentParser(prog="python -m tools.support_table")
    parser.add_argument("--write", action="store_true", help="put the tables into the pages")
    write = parser.parse_args().write
    for variant, page in PAGES.items():
        if write:
            page.write_text(with_table(page.read_text(), variant))
        else:
            print(table(variant))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the engines take, asked of the engines themselves: the tables of docs/reference.

    python -m tools.support_table           prints them
    python -m tools.support_table --write   puts them into the pages, between their markers

The tables are those of tensors of the CPU. Each row is a feature with a problem that needs it; each
cell is the verdict of an engine's support
column on that problem, so that a condition cannot change without its table.
"""

import argparse
import sys
from typing import NamedTuple

from deltaworks import Problem, _library
from tools.sources import ROOT

BEGIN, END = "<!-- support: begin -->", "<!-- support: end -->"
LARGEST_HEAD_DIM = 512  # of a valid problem
OF_ONE_PASS = ("pass", "overwrite_excludes_autograd")  # rules about what the other does not have
DELTA, MAMBA2 = "N2T64H4K64V64", "N2T64H4G2P64S64"

# Feature -> IO dtype, dims, options; several of the last two are separated by |.
IO = {
    "q k v in float32": ("fp32", DELTA, ""),
    "q k v in bfloat16": ("bf16", DELTA, ""),
    "q k v in float16": ("fp16", DELTA, ""),
    "q k v in float64": ("fp64", DELTA, ""),
    "g in bfloat16, float16": ("bf16", DELTA, ":g=bf16|:g=fp16"),
    "beta in the dtype of q": ("bf16", DELTA, ":beta=bf16"),
    "q grouped (HV = H n)": ("bf16", "N2T64H2HV4K64V64", ""),
    "v grouped (H = HV n), k with either": ("bf16", "N2T64H4HV2K64V64|N2T64H4HK2HV2K64V64", ""),
    "l2 norm of q and k": ("bf16", DELTA, ":l2norm"),
    "beta sigmoid, negative eigenvalues": ("bf16", DELTA, ":sigmoid|:sigmoid:neg"),
    "safe gate with a_log, dt_bias": ("bf16", DELTA, ":safe:a_log:dt_bias"),
    "linear gates": ("bf16", DELTA, ":linear"),
    "scale": ("bf16", DELTA, ":scale=0.5"),
}
CHANNELS = {
    "safe gate with a lower bound, softplus": ("bf16", DELTA, ":safe:bound=-3|:safe:softplus"),
}
MAMBA2_IO = {
    "x B C in float32": ("fp32", MAMBA2, ""),
    "x B C in bfloat16": ("bf16", MAMBA2, ""),
    "x B C in float16": ("fp16", MAMBA2, ""),
    "x B C in float64": ("fp64", MAMBA2, ""),
    "dt, A in bfloat16, float16": ("bf16", MAMBA2, ":dt=bf16|:dt=fp16|:A=bf16|:A=fp16"),
    "D by head, by channel": ("bf16", MAMBA2, ":D|:DP"),
    "z, dt_bias": ("bf16", MAMBA2, ":z|:dt_bias"),
    "steps without softplus, clamped": ("bf16", MAMBA2, ":linear_dt|:dt_min=0.1:dt_max=1"),
}


def states(dims, first):
    """What every operation has; `first` is an input of rank 3."""
    return {
        "initial state in float32, bfloat16, float16": (
            "bf16",
            dims,
            ":state|:state=bf16|:state=fp16",
        ),
        "final state": ("bf16", dims, ":final"),
        "strides of any kind": ("bf16", dims, f":{first}@8192x128x2|:{first}@0x0x0"),
        "no tokens, no sequences": (
            "bf16",
            f"{dims.replace('T64', 'T0')}|{dims.replace('N2', 'N0')}",
            "",
        ),
        "batch_invariant": ("bf16", dims, ":invariant"),
        "overwrite_initial_state": ("bf16", dims, ":state:overwrite"),
        "state_indices (pools)": ("bf16", dims, ":state:pool=8"),
        "state checkpoints": ("bf16", dims, ":every=64"),
    }


class Operation(NamedTuple):
    page: str
    features: dict
    dims: str = DELTA
    axes: tuple = (("K", "key dimension"), ("V", "value dimension"))
    options: str = ""  # that every problem has


OPERATIONS = {
    "gdn": Operation("gated-delta-net.md", IO | states(DELTA, "q")),
    "kda": Operation("kimi-delta-attention.md", IO | CHANNELS | states(DELTA, "q")),
    "gdn2": Operation(
        "gated-delta-net-v2.md",
        IO
        | CHANNELS
        | {
            "w in the dtype of q": ("bf16", DELTA, ":w=bf16"),
            "beta guard": ("bf16", DELTA, ":l2norm:guard"),
        }
        | states(DELTA, "q"),
    ),
    "gdp": Operation(
        "gated-delta-product.md",
        IO | {"k v beta as [T, n, ...]": ("bf16", DELTA, ":token_major")} | states(DELTA, "q"),
        options=":n=2",
    ),
    "mamba2": Operation(
        "mamba2.md",
        MAMBA2_IO | states(MAMBA2, "x"),
        MAMBA2,
        (("S", "state dimension"), ("P", "head dimension")),
    ),
}
PAGES = {
    variant: ROOT / "docs" / "reference" / operation.page
    for variant, operation in OPERATIONS.items()
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
        answer(f"{variant}:{pass_}:{io}:{d}{OPERATIONS[variant].options}{o}", plan)
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
    dims, options = OPERATIONS[variant].dims, OPERATIONS[variant].options
    sizes = [
        size
        for size in range(1, LARGEST_HEAD_DIM + 1)
        if all(
            answer(
                f"{variant}:{pass_}:bf16:{dims.replace(f'{axis}64', f'{axis}{size}')}{options}",
                plan,
            )
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
    operation = OPERATIONS[variant]
    found = verdicts(f"{variant}:fwd:fp32:{operation.dims}{operation.options}")
    plans = [plan for plan in found if "tensors must be in CPU memory" in found[plan].conditions]
    lines = [
        "| | " + " | ".join(f"`{plan}`" for plan in plans) + " |",
        "|---|" + "---|" * len(plans),
    ]
    for name, feature in operation.features.items():
        cells = [cell(variant, feature, plan) for plan in plans]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for axis, name in operation.axes:
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

"""Another project's plain torch implementation on one sequence, in a process of its own.

    python evaluate.py FOLDER NAME INPUTS.npz RESULTS.npz

INPUTS holds the arguments of the operation of ours that NAME stands beside (float32, without the
options that NAME lacks), and d_o and d_final. RESULTS gets "o", "final_state" and, where the
implementation has them, gradients by their inputs' names. What that project defines otherwise is
translated here: a batch axis, states stored [K, V], a step that is already part of x and A.
"""

from __future__ import annotations

import importlib.util
import pathlib
import sys
import types
from unittest import mock

import numpy as np
import torch


def load(path, **stand_ins):
    """A single file as a module. `stand_ins` are what it imports for its kernels, which are not
    called: none of them is needed by its plain functions."""
    for name, module in stand_ins.items():
        sys.modules[name.replace("__", ".")] = module
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fla(folder, operation):
    return load(folder / "packages" / "fla" / "ops" / operation / "naive.py")


def delta_rule(function, x, scale, **options):
    """Theirs have a batch axis, and states [K, V]."""
    rows = {name: x[name][None] for name in ("q", "k", "v", "g", "beta")}
    state = x["initial_state"].transpose(-1, -2)
    o, final = function(
        **rows, scale=scale, initial_state=state, output_final_state=True, **options
    )
    return o[0], final.transpose(-1, -2)


def gated_delta_rule(folder, x):
    function = fla(folder, "gated_delta_rule").naive_recurrent_gated_delta_rule
    return delta_rule(function, x, None)


def gated_delta_rule_in_chunks(folder, x):
    function = fla(folder, "gated_delta_rule").naive_chunk_gated_delta_rule
    return delta_rule(function, x, None, chunk_size=16)


def kda(folder, x):
    return delta_rule(fla(folder, "kda").naive_recurrent_kda, x, None)


def kda_in_chunks(folder, x):
    return delta_rule(fla(folder, "kda").naive_chunk_kda, x, None, chunk_size=16)


def gated_delta_product(folder, x):
    steps = len(x["k"]) // len(x["q"])
    function = fla(folder, "gated_delta_product").naive_recurrent_gated_delta_product
    return delta_rule(function, x, x["q"].shape[-1] ** -0.5, num_householder=steps)


def ssd_minimal(folder, x):
    """Theirs takes x and A with the step in them, and B and C a head."""
    kernels = types.ModuleType("kernels")
    kernels.mamba_chunk_scan_combined = None
    path = folder / "mamba_ssm" / "mamba_ssm" / "modules" / "ssd_minimal.py"
    module = load(path, mamba_ssm__ops__triton__ssd_combined=kernels)
    step = torch.nn.functional.softplus(x["dt"] + x["dt_bias"])
    group = x["x"].shape[1] // x["B"].shape[1]
    B, C = (x[name].repeat_interleave(group, 1) for name in ("B", "C"))
    rows = (x["x"] * step[..., None], x["A"] * step, B, C)
    y, final = module.ssd_minimal_discrete(
        *(row[None] for row in rows), 8, x["initial_state"][None]
    )
    return y[0], final


def selective_state_update(folder, x):
    """Theirs is one token's step, with a number a channel; it writes its state."""
    kernels = mock.MagicMock()
    path = folder / "mamba_ssm" / "mamba_ssm" / "ops" / "triton" / "selective_state_update.py"
    names = ("triton", "triton__language", "mamba_ssm__ops__triton__softplus")
    step = load(path, **dict.fromkeys(names, kernels)).selective_state_update_ref
    heads, value_dim = x["x"].shape[1:]
    state = x["initial_state"].detach().clone()
    A = x["A"][:, None, None].expand(heads, value_dim, state.shape[-1])
    D, bias = (x[name][:, None].expand(heads, value_dim) for name in ("D", "dt_bias"))
    rows = []
    with torch.no_grad():
        for t in range(len(x["x"])):
            x_t, dt, B, C, z = (x[name][t][None] for name in ("x", "dt", "B", "C", "z"))
            dt = dt[..., None].expand(1, heads, value_dim)
            rows.append(step(state, x_t, dt, A, B, C, D, z, bias, dt_softplus=True)[0])
    return torch.stack(rows), state


FUNCTIONS = (gated_delta_rule, gated_delta_rule_in_chunks, kda, kda_in_chunks, gated_delta_product)
FUNCTIONS += (ssd_minimal, selective_state_update)


def main(folder, name, inputs, results):
    folder = pathlib.Path(folder)
    sys.path.insert(0, str(folder / "packages"))
    with np.load(inputs) as arrays:
        x = {key: torch.from_numpy(arrays[key]) for key in arrays.files}
    flows = [x.pop("d_o"), x.pop("d_final")]
    for tensor in x.values():
        tensor.requires_grad_()
    outputs = {function.__name__: function for function in FUNCTIONS}[name](folder, x)
    got = dict(zip(("o", "final_state"), outputs, strict=True))
    if outputs[0].requires_grad:
        grads = torch.autograd.grad(outputs, list(x.values()), flows)
        got.update(zip(x, grads, strict=True))
    np.savez(results, **{key: value.detach().numpy() for key, value in got.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])

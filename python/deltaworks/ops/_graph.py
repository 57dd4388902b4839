"""The operators as they stand in compiled graphs.

A compiled graph calls its operators without any Python of ours around them. These call the C++
operators and turn their failures into the exceptions of the package, so that a compiled call raises
at run time exactly what the eager call raises.
"""

from __future__ import annotations

import torch

from deltaworks.errors import from_status, translated
from deltaworks.ops import _binding, _fake  # noqa: F401  (_binding defines the C++ operators)

_ARGUMENTS = (
    "int op, int flags, float scale, str? gate_domain, str? plan_name, "
    "int checkpoint_every_n_tokens, int checkpoint_dtype, Tensor[] tensors, int ports"
)
_RARE = (
    "str? gate=None, float gate_lower_bound=0, int num_householder=0, float dt_min=0, "
    "float dt_max=0"
)
_library = torch.library.Library("deltaworks", "FRAGMENT")


def _define(name, schema, kernel, fake):
    # Strides are handed on as they are: the operators take any.
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
    _library.define(f"{name}{schema}", tags=tags)
    _library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"deltaworks::{name}", fake, lib=_library)


def _translating(operator):
    def kernel(*arguments):
        try:
            return operator(*arguments)
        except RuntimeError as error:
            raise translated(error) from None

    return kernel


def overwrite(*arguments):
    """forward_in_place, counted as a write of initial_state: the dispatcher leaves that to us."""
    o = forward_in_place(*arguments)
    torch.autograd.graph.increment_version(arguments[_fake.OPTIONS + 2])
    return o


def _failure(status, text, like):
    raise from_status(status, text)


def _failure_fake(status, text, like):
    if not _fake.tracing():
        raise from_status(status, text)
    return torch.empty_like(like)


forward = torch.ops.deltaworks.forward.default
forward_in_place = torch.ops.deltaworks.forward_in_place.default
backward = torch.ops.deltaworks.backward.default
torch.library.register_fake("deltaworks::forward", _fake.forward, lib=_library)
torch.library.register_fake("deltaworks::forward_in_place", _fake.forward_in_place, lib=_library)
torch.library.register_fake("deltaworks::backward", _fake.backward, lib=_library)

_define(
    "graph_forward", f"({_ARGUMENTS}, {_RARE}) -> Tensor[]", _translating(forward), _fake.forward
)
_define(
    "graph_forward_in_place",
    f"({_ARGUMENTS}, Tensor(a!) initial_state, {_RARE}) -> Tensor",
    _translating(overwrite),
    _fake.forward_in_place,
)
_define(
    "graph_backward",
    f"({_ARGUMENTS}, int wanted, {_RARE}) -> Tensor[]",
    _translating(backward),
    _fake.backward,
)
# What Python judges before the dispatcher is reached, raised where the graph runs.
_define("graph_failure", "(int status, str text, Tensor like) -> Tensor", _failure, _failure_fake)

graph_forward = torch.ops.deltaworks.graph_forward.default
graph_forward_in_place = torch.ops.deltaworks.graph_forward_in_place.default
graph_backward = torch.ops.deltaworks.graph_backward.default
graph_failure = torch.ops.deltaworks.graph_failure.default
torch.fx.node.has_side_effect(graph_failure)  # kept where its output is not used

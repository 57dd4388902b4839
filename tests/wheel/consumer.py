"""A typed program that uses the installed package; mypy --strict must accept it as it stands.

Calls marked with a code must be errors of just that code: an annotation that is lost makes the mark
superfluous, which strict mypy reports as well.
"""

from typing import assert_type

import numpy as np
import torch

import deltaworks as dw
import deltaworks.numpy as dwn
from deltaworks.ops import gated_delta_net, last_plan
from deltaworks.testing import make_inputs, run_problem

assert_type(dw.__version__, str)
assert_type(dw.cpu_isa(), tuple[str, int])
not_supported: type[NotImplementedError] = dw.NotSupportedError

problem = dw.Problem("gdn:fwd:fp32:N2T100H2K16V16:final")
assert_type(str(problem), str)
assert_type(problem.dims.T, int)
arrays = make_inputs(problem, seed=0)
assert_type(arrays, dict[str, np.ndarray])
assert_type(run_problem(problem, arrays), dict[str, np.ndarray])
dw.Problem(5)  # type: ignore[arg-type]

q, k, v, g, beta, offsets = arrays.values()
o, final_state = dwn.gated_delta_net(q, k, v, g, beta, offsets, output_final_state=True)
assert_type(o, np.ndarray)
assert_type(final_state, np.ndarray | None)
gradients = dwn.gated_delta_net_backward(q, k, v, g, beta, offsets, o, wanted=["q", "g"])
assert_type(gradients, dwn.GatedDeltaNetGradients)
assert_type(gradients.dq, np.ndarray | None)
dwn.gated_delta_net(q, k, v, g, beta, offsets, scale="1")  # type: ignore[arg-type]
dwn.gated_delta_net(q, k, v, g, beta)  # type: ignore[call-arg]

tensor = torch.zeros(10)
dwn.gated_delta_net(tensor, tensor, tensor, tensor, tensor, tensor)  # it speaks DLPack
assert_type(
    gated_delta_net(tensor, tensor, tensor, tensor, tensor, tensor),
    tuple[torch.Tensor, torch.Tensor | None],
)
gated_delta_net(q, k, v, g, beta, offsets)  # type: ignore[arg-type]
assert_type(last_plan(), str)

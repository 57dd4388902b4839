"""Tools to test and reproduce operator calls, without torch: NumPy, ml_dtypes and safetensors.

problem = Problem("gdn:fwd:bf16:N2T100H2K64V64:l2norm")
inputs = make_inputs(problem, seed=0)
outputs = run_problem(problem, inputs)                    # {"o": ...}
for row in compare(problem, inputs, outputs): ...         # errors beside their bounds

with capture("call.safetensors"):                         # the first operator call inside
    model(batch)
problem, inputs = read_capture("call.safetensors")
"""

from deltaworks.testing.captures import capture
from deltaworks.testing.comparison import compare
from deltaworks.testing.execute import run_problem
from deltaworks.testing.inputs import make_inputs
from deltaworks.testing.read import read_capture

__all__ = ["capture", "compare", "make_inputs", "read_capture", "run_problem"]

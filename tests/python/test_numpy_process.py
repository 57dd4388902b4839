"""The NumPy operators in a process: no torch in it, threads, the interpreter's lock, the docs."""

import pathlib
import re
import threading
import time

import pytest

from cases import Case, build
from deltaworks import _hooks, _library
from deltaworks.numpy import gated_delta_net, gated_delta_net_backward
from run_op import assert_same_bits
from test_errors import failure
from test_numpy_kit import run, to_numpy
from test_process import script

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "numpy.md"


def test_torch_is_not_imported():
    result = script(
        """
        import sys
        import numpy as np
        from deltaworks.numpy import gated_delta_net, gated_delta_net_backward

        x = np.ones((3, 1, 2), np.float32)
        call = dict(q=x, k=x, v=x, g=-x[..., 0], beta=x[..., 0], cu_seqlens=np.array([0, 3]))
        o, _ = gated_delta_net(**call)
        gradients = gated_delta_net_backward(**call, dO=o)
        assert o.any() and gradients.dq.any()
        print([name for name in sys.modules if name.startswith("torch")])
        """
    )
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


def test_the_example_of_the_docs_runs_without_torch():
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(blocks) == 1
    ending = """
import sys
assert o.shape == (1000, 4, 64) and state.shape == (2, 4, 64, 64)
assert o.dtype.name == "bfloat16" and gradients.dk.shape == k.shape
assert gradients.dk.any() and "torch" not in sys.modules
print("it runs")
"""
    result = script(blocks[0] + ending)
    assert result.stdout.split("\n")[-2:] == ["it runs", ""], result.stderr


def test_the_errors_of_the_docs_are_raised():
    text, names = DOCS.read_text(), {}
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], names)
    shown = re.findall(r"^    >>> (.*)\n    (\w+): (.*)$", text, re.MULTILINE)
    assert len(shown) == 2
    for call, kind, message in shown:
        got = failure(lambda call=call: eval(call, names))
        assert (got[0].__name__, got[1]) == (kind, message)


def test_a_hook_sees_both_passes_before_they_run(monkeypatch):
    """The problem with its outputs, and the arguments themselves by name."""
    problem = build(Case())
    inputs = {name: to_numpy(x) for name, x in problem.inputs.items()}
    seen = []

    def hook(struct, arrays):
        outputs = sum(1 << tensor.port for tensor in struct.described())
        seen.append((struct.pass_, bool(outputs >> _library.OUT & 1), arrays))
        if len(seen) > 2:
            raise KeyError("enough")

    monkeypatch.setattr(_hooks, "call_hook", hook)
    o, _ = gated_delta_net(**inputs)
    gated_delta_net_backward(**inputs, dO=o)
    with pytest.raises(KeyError, match="enough"):
        gated_delta_net(**inputs)
    assert [row[:2] for row in seen] == [(0, True), (1, False), (0, True)]
    calls = (inputs, inputs | {"dO": o}, inputs)
    for arrays, expected in zip((row[2] for row in seen), calls, strict=True):
        assert arrays.keys() == expected.keys()
        assert all(arrays[name] is expected[name] for name in expected)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_changes_the_workspace_and_no_bit(threads):
    problem = build(Case(lengths=(40, 40), heads=(2, 2, 2), K=64, V=64))
    expected = run(problem, threads=4)
    whole = _library.last_workspace_bytes()
    assert_same_bits(run(problem, threads=threads), expected)
    assert _library.last_workspace_bytes() < whole  # a scratch a thread


def test_threads_compute_the_same_bits_side_by_side():
    problems = [build(Case(lengths=(90, 0, 33), heads=(2, 2, 4), seed=seed)) for seed in range(4)]
    expected = [run(problem) for problem in problems]
    failures = []

    def work(problem, reference, convert):
        try:
            for _ in range(10):
                assert_same_bits(run(problem, convert=convert), reference)
        except BaseException as error:
            failures.append(error)

    converts = (to_numpy, lambda x: x) * 2  # arrays and DLPack tensors
    threads = [
        threading.Thread(target=work, args=row)
        for row in zip(problems, expected, converts, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_a_python_thread_runs_during_a_call():
    """Forward and backward release the interpreter's lock."""
    problem = build(Case(lengths=(24000,), heads=(4, 4, 4), K=128, V=128))
    inputs = {name: to_numpy(x) for name, x in problem.inputs.items()}
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        start = time.perf_counter()
        gated_delta_net(**inputs, plan_name="gdn_cpu", **problem.options)
        middle = time.perf_counter()
        gated_delta_net_backward(
            **inputs, dO=to_numpy(problem.d_o), wanted=["k"], plan_name="gdn_cpu", **problem.options
        )
        end = time.perf_counter()
    finally:
        stop.set()
        thread.join()
    for a, b in ((start, middle), (middle, end)):
        assert b - a > 0.01, "too short a call to tell"
        inside = sum(a + 0.1 * (b - a) < t < b - 0.1 * (b - a) for t in ticks)
        assert inside >= 3, f"{inside} ticks in {b - a:.3f} s"

"""The PyTorch operator on CUDA tensors: streams, graphs, compilation, allocations, checks, sizes.

Values are in regimes_test.py, what must be exact in bitwise_test.py; see kit.py for how tests run.
"""

import json
import os
import subprocess
import sys

import kit
import torch
from kit import DEVICE, PLAN, moved, needs_card, test

import deltaworks as dw
import layouts
from cases import Case, build
from deltaworks.ops import gated_delta_net, last_plan, workspace_bytes
from run_op import same_bits

SIZES = ("requested", "allocated")  # of the allocator's statistics
OPTIONS = dict(use_qk_l2norm_in_kernel=True, output_final_state=True)


def inputs(lengths, heads=(2, 2, 4), K=128, V=128, io="bf16"):
    return moved(build(Case(tuple(lengths), 0, heads, K, V, io, state=None, final=False))).inputs


def run(arguments, **options):
    """(o, final_state); no plan is pinned, so it is also tested that the engine is chosen."""
    with torch.no_grad():
        results = gated_delta_net(**arguments, **{**OPTIONS, **options})
    assert last_plan() == PLAN, last_plan()
    return results


def agree(a, b):
    return all(same_bits(x, y) for x, y in zip(a, b, strict=True))


@test
@needs_card
def gradients_are_declined():
    arguments = inputs([40])
    arguments["q"].requires_grad_()
    try:
        gated_delta_net(**arguments, **OPTIONS)
    except dw.NotSupportedError as error:
        assert "no gradient may be asked for" in str(error), error
    else:
        raise AssertionError("accepted")
    run(arguments)  # under no_grad


@test
@needs_card
def the_current_stream():
    """Two streams at once; their inputs are written in the stream's order."""
    for lengths, heads in (([4000], (8, 8, 8)), ([8192], (1, 1, 2)), ([300, 1, 900], (4, 4, 4))):
        arguments = inputs(lengths, heads)
        expected = run(arguments)
        streams = [torch.cuda.Stream() for _ in range(2)]
        torch.cuda.synchronize()
        results = []
        for _ in range(5):
            for stream in streams:
                with torch.cuda.stream(stream):
                    late = {name: x.clone() for name, x in arguments.items()}
                    results.append(run(late))
        torch.cuda.synchronize()
        assert all(agree(result, expected) for result in results)


@test
@needs_card
def graph_capture():
    for lengths in ([500, 20], [512, *[6] * 48], [8192]):
        arguments = inputs(lengths)
        expected = run(arguments)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            run(arguments)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = run(arguments)
        for _ in range(400):
            for x in captured:
                x.fill_(torch.nan)
            graph.replay()
        torch.cuda.synchronize()
        assert agree(captured, expected)


@test
@needs_card
def states_in_place():
    """The bits of calls that hand states on; a graph goes on from its last replay."""
    options = dict(overwrite_initial_state=True, output_final_state=False)
    for lengths, heads in (([300, 0, 77], (2, 2, 4)), ([8192], (1, 1, 1))):
        for dtype in (torch.float32, torch.bfloat16):
            arguments = inputs(lengths, heads)
            first = torch.randn(len(lengths), max(heads), 128, 128, device=DEVICE).to(dtype)
            expected, state = [], first
            for _ in range(3):
                expected.append(run(arguments, initial_state=state))
                state = expected[-1][1]
            state = first.clone()
            for results in expected:
                o, final_state = run(arguments, initial_state=state, **options)
                assert final_state is state and agree((o, state), results)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                o, _ = run(arguments, initial_state=state, **options)
            state.copy_(first)
            for results in expected:
                graph.replay()
                assert agree((o, state), results)


@test
def compilation():
    arguments = inputs([90, 10])
    expected = run(arguments)
    with torch.no_grad():
        compiled = torch.compile(lambda a: gated_delta_net(**a, **OPTIONS), fullgraph=True)
        assert agree(compiled(arguments), expected)


def size(tensors):
    return sum(x.numel() * x.element_size() for x in tensors)


def peak(name):
    return torch.cuda.memory_stats()[f"{name}_bytes.all.peak"]


@test
@needs_card
def a_call_allocates_its_outputs_and_its_workspace():
    """Whatever the inputs' strides: the bytes asked for are exact, those taken at most 1 MiB more a
    block, which the allocator does not split off."""

    def expanded(x):
        return layouts.expanded(x, 0) if x.dim() > 1 else x

    for lengths in ([100, 0, 157], [8192], [1024] * 16):
        arguments = inputs(lengths)
        for layout in (torch.Tensor.contiguous, *layouts.ALL, expanded):
            views = {name: layout(x) for name, x in arguments.items()}
            run(views)  # plans are made once
            before = {
                name: torch.cuda.memory_stats()[f"{name}_bytes.all.current"] for name in SIZES
            }
            torch.cuda.reset_peak_memory_stats()
            results = run(views)
            wanted = size(results) + workspace_bytes()
            requested, allocated = (peak(name) - before[name] for name in SIZES)
            assert requested == wanted, f"{layout}: {requested} bytes asked for, not {wanted}"
            assert wanted <= allocated <= wanted + 3 * 2**20, (allocated, wanted)
            assert torch.cuda.max_memory_allocated() == peak("allocated")
            del results


@test
@needs_card
def the_measure_of_allocations_sees_a_copy():
    x = torch.zeros(1000, device=DEVICE)
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    x.clone()
    assert peak("requested") - before == 4000


@test
@needs_card
def memory_that_a_call_reuses_may_hold_anything():
    """Outputs and workspace come from blocks of exactly their sizes that were left full of NaN."""
    for lengths in ([0, 100, 0, 157], [8192], [700] * 30):
        arguments = inputs(lengths)
        arguments = {  # the last rows belong to no sequence
            name: x if name == "cu_seqlens" else torch.cat([x, x[:50]])
            for name, x in arguments.items()
        }
        expected = [x.cpu() for x in run(arguments)]
        assert not expected[0][-50:].any()
        sizes = [*(size([x]) for x in expected), workspace_bytes()]
        for byte in (0xFF, 0x7F):
            torch.cuda.empty_cache()
            blocks = [
                torch.full((n,), byte, dtype=torch.uint8, device=DEVICE) for n in sizes if n > 0
            ]
            poisoned = [(x.data_ptr(), x.data_ptr() + x.numel()) for x in blocks]
            del blocks
            got = run(arguments)
            reused = [any(a <= x.data_ptr() < b for a, b in poisoned) for x in got]
            assert all(reused), "an output lies elsewhere, so that this tests nothing"
            assert agree([x.cpu() for x in got], expected)
            del got


CHECKED = """
import json, sys, torch, deltaworks.ops as ops
torch.set_default_device("cuda")
q, g = torch.zeros(12, 1, 64, dtype=torch.bfloat16), torch.zeros(12, 1)
texts = []
for dtype, offsets in json.load(sys.stdin):
    offsets = torch.tensor(offsets, dtype=getattr(torch, dtype))
    try:
        ops.gated_delta_net(q, q, q, g, g, offsets)
        torch.cuda.synchronize()
        texts.append("accepted by " + ops.last_plan())
    except ValueError as error:
        texts.append(str(error))
print(json.dumps(texts))
"""
MALFORMED = ([1, 5, 12], [-1, 5, 12], [0, 7, 5], [0, 12, 11, 12], [0, 5, 13], [0, 2**31 - 1])
WELL_FORMED = ([0, 5, 12], [0, 0, 12, 12], [0, 5], [0], [0, *range(13)])


def checked(calls, value):
    """What each of `calls` says in a process where DELTAWORKS_CHECK is `value`."""
    environment = os.environ | {"DELTAWORKS_CHECK": value}
    result = subprocess.run(
        [sys.executable, "-c", CHECKED],
        input=json.dumps(calls),
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@test
@needs_card
def offsets_are_validated_where_it_is_asked_for():
    """DELTAWORKS_CHECK=1 raises the CPU's text; without it nothing is read on the host."""
    calls = [
        (dtype, offsets)
        for dtype in ("int32", "int64")
        for offsets in (*MALFORMED, *WELL_FORMED, *MALFORMED)  # and after good ones
    ]
    q, g = torch.zeros(12, 1, 64, dtype=torch.bfloat16), torch.zeros(12, 1)
    expected = []
    for dtype, offsets in calls:
        offsets = torch.tensor(offsets, dtype=getattr(torch, dtype))
        try:
            gated_delta_net(q, q, q, g, g, offsets)
            expected.append(f"accepted by {PLAN}")
        except ValueError as error:
            assert "cu_seqlens must" in str(error)
            expected.append(str(error))
    assert expected.count(f"accepted by {PLAN}") == 2 * len(WELL_FORMED)
    assert checked(calls, "1") == expected
    assert checked(calls, "") == [f"accepted by {PLAN}"] * len(calls)


@test
def many_sequences():
    for lengths, heads in (([1, 17] * 1025, (32, 32, 32)), ([1] * 70000, (1, 1, 1))):
        arguments = inputs(lengths, heads=heads, K=64, V=64)
        o, state = run(arguments, batch_invariant=True)
        offsets = arguments["cu_seqlens"].tolist()
        for n in (0, 1, len(lengths) // 2, len(lengths) - 1):
            rows = slice(offsets[n], offsets[n + 1])
            assert agree(run(alone(arguments, rows), batch_invariant=True), (o[rows], state[[n]]))


def alone(arguments, rows):
    """The arguments of a call on one sequence of a batch."""
    tokens = {name: x[rows] for name, x in arguments.items() if name != "cu_seqlens"}
    offsets = torch.tensor([0, rows.stop - rows.start], device=DEVICE)
    return {**tokens, "cu_seqlens": offsets}


@test
@needs_card
def more_than_two_to_the_31_elements():
    length, count, H, D = 17477, 15, 64, 128  # 2.15e9 elements a tensor
    q = torch.empty(length * count, H, D, dtype=torch.bfloat16, device=DEVICE).normal_()
    assert q.numel() > 2**31
    arguments = dict(
        q=q,
        k=q,
        v=q,
        g=-torch.rand(length * count, H, device=DEVICE),
        beta=torch.rand(length * count, H, device=DEVICE),
        cu_seqlens=torch.arange(count + 1, device=DEVICE) * length,
    )
    for batch_invariant in (True, False):
        o, state = run(arguments, batch_invariant=batch_invariant)
        for n in (0, count - 1):
            rows = slice(length * n, length * (n + 1))
            got = run(alone(arguments, rows), batch_invariant=batch_invariant)
            expected = (o[rows], state[[n]])
            if batch_invariant:
                assert agree(got, expected)
            for a, b in zip(got, expected, strict=True):
                error = (a.float() - b.float()).square().mean() / b.float().square().mean()
                assert error.sqrt() < kit.bounds.FORWARD["bfloat16"], error
        del o, state, expected


if __name__ == "__main__":
    sys.exit(kit.main())

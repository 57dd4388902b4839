"""The PyTorch operator on CUDA tensors: values, streams, graphs, compilation, sizes.

    python torch_test.py       prints one line a test; exits with 1 if one fails

Values are judged against the reference engine on the CPU by the relative RMS error of SPEC's bounds
for bf16 and fp16.
"""

import sys
import traceback

import torch

import deltaworks as dw
from deltaworks.ops import gated_delta_net, last_plan

BOUND = {torch.bfloat16: 1e-2, torch.float16: 3e-3}
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def inputs(lengths, heads=(2, 2, 4), K=128, V=128, dtype=torch.bfloat16, seed=0, gate=-0.5):
    rng = torch.Generator("cuda").manual_seed(seed)
    H, HK, HV = heads
    T = sum(lengths)

    def randn(*shape):
        return torch.randn(*shape, generator=rng, device="cuda")

    return dict(
        q=randn(T, H, K).to(dtype),
        k=randn(T, HK, K).to(dtype),
        v=randn(T, HV, V).to(dtype),
        g=gate * randn(T, max(H, HV)).abs(),
        beta=torch.rand(T, max(H, HV), generator=rng, device="cuda"),
        cu_seqlens=torch.tensor([0, *torch.tensor(lengths).cumsum(0)], device="cuda"),
    )


OPTIONS = dict(use_qk_l2norm_in_kernel=True, output_final_state=True)


def run(arguments, **options):
    with torch.no_grad():
        o, state = gated_delta_net(**arguments, **{**OPTIONS, **options})
    assert last_plan() == "gdn_sm80", last_plan()
    return o, state


def on_cpu(arguments, **options):
    arguments = {name: x.cpu() for name, x in arguments.items()}
    options = {**OPTIONS, **options}
    return gated_delta_net(**arguments, **options, plan_name="gdn_reference")


def assert_close(got, reference, bound):
    for a, b in zip(got, reference, strict=True):
        a, b = a.double().cpu(), b.double()
        assert a.isfinite().all()
        error = ((a - b).square().mean() / b.square().mean()).sqrt().item()
        assert error <= bound, f"relative RMS error {error:.2e} > {bound}"


def same_bits(a, b):
    return all(
        torch.equal(
            x.view(torch.int16 if x.element_size() == 2 else torch.int32),
            y.view(torch.int16 if y.element_size() == 2 else torch.int32),
        )
        for x, y in zip(a, b, strict=True)
    )


@test
def values():
    for dtype, bound in BOUND.items():
        for gate in (0.0, -0.01, -2.5):
            arguments = inputs([300, 1, 0, 77], dtype=dtype, gate=gate)
            assert_close(run(arguments), on_cpu(arguments), bound)


@test
def strided_views():
    arguments = inputs([130, 70])
    expected = run(arguments)
    padded = {}
    for name, x in arguments.items():
        if name == "cu_seqlens":
            padded[name] = torch.stack([x, x + 5], 1)[:, 0]
            continue
        wide = torch.full(
            (x.shape[0], *[n + 1 for n in x.shape[1:]]), torch.nan, dtype=x.dtype, device="cuda"
        )
        view = wide[(slice(None), *[slice(1, None)] * (x.dim() - 1))]
        padded[name] = view.copy_(x)
    assert same_bits(run(padded), expected)
    joint = torch.cat([arguments["q"], arguments["k"]], 1)
    assert same_bits(run({**arguments, "q": joint[:, :2], "k": joint[:, 2:]}), expected)


@test
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
def the_current_stream():
    arguments = inputs([4000], heads=(8, 8, 8))
    expected = run(arguments)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for _ in range(5):
        for stream in streams:
            with torch.cuda.stream(stream):
                late = {n: x.clone() for n, x in arguments.items()}  # in the stream's order
                results.append(run(late))
    torch.cuda.synchronize()
    assert all(same_bits(result, expected) for result in results)


@test
def graph_capture():
    for lengths in ([500, 20], [512, *[6] * 48]):
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
        assert same_bits(captured, expected)


@test
def compilation():
    arguments = inputs([90, 10])
    expected = run(arguments)
    with torch.no_grad():
        compiled = torch.compile(lambda a: gated_delta_net(**a, **OPTIONS), fullgraph=True)
        assert same_bits(compiled(arguments), expected)


@test
def many_sequences():
    for lengths, heads in (([1, 17] * 1025, (32, 32, 32)), ([1] * 70000, (1, 1, 1))):
        arguments = inputs(lengths, heads=heads, K=64, V=64)
        o, state = run(arguments)
        offsets = arguments["cu_seqlens"]
        for n in (0, 1, len(lengths) // 2, len(lengths) - 1):
            rows = slice(int(offsets[n]), int(offsets[n + 1]))
            alone = {k: x[rows] for k, x in arguments.items() if k != "cu_seqlens"}
            alone["cu_seqlens"] = offsets[:2] * 0
            alone["cu_seqlens"][1] = rows.stop - rows.start
            assert same_bits(run(alone), (o[rows], state[n : n + 1]))


@test
def more_than_two_to_the_31_elements():
    T, H, D = 17477 * 15, 64, 128  # 2.15e9 elements a tensor
    lengths = [17477] * 15
    q = torch.empty(T, H, D, dtype=torch.bfloat16, device="cuda").normal_()
    arguments = dict(
        q=q,
        k=q,
        v=q,
        g=-torch.rand(T, H, device="cuda"),
        beta=torch.rand(T, H, device="cuda"),
        cu_seqlens=torch.tensor([0, *torch.tensor(lengths).cumsum(0)], device="cuda"),
    )
    assert q.numel() > 2**31
    o, state = run(arguments)
    for n in (0, 14):
        rows = slice(17477 * n, 17477 * (n + 1))
        alone = {k: y[rows] for k, y in arguments.items() if k != "cu_seqlens"}
        alone["cu_seqlens"] = torch.tensor([0, 17477], device="cuda")
        assert same_bits(run(alone), (o[rows], state[n : n + 1]))


def main():
    failed = 0
    for function in TESTS:
        try:
            function()
            outcome = "ok"
        except Exception:
            traceback.print_exc()
            outcome, failed = "FAILED", failed + 1
        torch.cuda.empty_cache()
        print(f"{function.__name__:40} {outcome}", flush=True)
    print(f"{failed} of {len(TESTS)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The forward in every regime, dtype and option that the engine takes, against its two judges.

The regimes are those of tests/python/cases.py and, where they need more than a Case says, built
here. bf16 and fp16; see kit.py for the judges and the bounds.
"""

import itertools
import sys
from dataclasses import replace

import kit
import torch
from kit import IO, NARROW_OPERANDS, REFLECTIONS, check, on_cpu, run, test

from cases import HEADS, LENGTHS, REGIMES, Case, build, pairs

DIMS = (16, 48, 64, 80, 128, 192, 256)
EDGES = (1, 15, 16, 17, 63, 64, 65, 127, 128, 129)  # about rows of tiles and of chunks
RAGGED = (4096, 1, 0, 777, 64)
LONG = [
    Case(lengths=(8192,), heads=(1, 1, 1), regime="weak", K=128, V=64),
    Case(lengths=(8192,), heads=(1, 1, 2), regime="resets", K=64, V=128),
    Case(lengths=(8192,), heads=(1, 1, 1), regime="repeated", K=64, V=64),
    Case(lengths=(8192,), heads=(2, 2, 2), regime="zero_rows", K=64, V=64),
    Case(lengths=(4097,), heads=(3, 3, 3), regime="linear", K=64, V=64, state="bf16"),
    Case(lengths=(4097,), heads=(4, 2, 2), regime="safe_bound", a_log="fp32", K=64, V=64),
    Case(lengths=(512, 300), heads=(2, 2, 4), regime="beta_two", l2norm=False, K=64, V=64),
    Case(lengths=RAGGED, heads=(1, 1, 1), regime="weak", tail=9, K=128, V=128),
]


@test
def every_pair_of_axes():
    """Head counts and dims, lengths, dtypes, options and regimes: each pair of values once."""
    lengths = (*LENGTHS, (127,), (128,), (129,))
    for case in pairs(io=IO, K=DIMS, V=DIMS, lengths=lengths, heads=HEADS, final=(False,)):
        check(build(case))


@test
def every_regime_at_the_edges_of_chunks():
    for io in IO:
        for regime in REGIMES:
            l2norm = regime != "beta_two"
            heads = (2, 2, 4)
            check(build(Case(EDGES, 3, heads, 128, 128, io, regime=regime, l2norm=l2norm)))


@test
def long_sequences_of_few_heads():
    for io in IO:
        for case in LONG:
            check(build(replace(case, io=io)))


@test
def long_sequences_whose_heads_differ_in_their_gates():
    for io in IO:
        for lengths in ((4097,), RAGGED):
            case = Case(lengths=lengths, heads=(2, 2, 4), io=io, K=64, V=64)
            problem = build(case)
            for head, regime in enumerate(("weak", "resets", "strong", "moderate")):
                gates = build(replace(case, regime=regime)).inputs["g"]
                problem.inputs["g"][:, head] = gates[:, head]
            check(problem)


@test
def many_heads_and_tokens():
    """Against the CPU engine alone: the oracle would take too long."""
    for io in IO:
        for regime in ("moderate", "weak"):
            case = Case((2048, 1, 1023), 1, (16, 16, 32), 128, 128, io, regime=regime)
            check(build(case), judges=(on_cpu,))


@test
def equal_and_nearly_equal_keys_with_beta_up_to_two():
    """Reflections about one key, which rounding must not move alike in every pair of rows."""
    rng = torch.Generator().manual_seed(1)
    for io, K, noise in itertools.product(IO, (16, 64, 128), (0.0, 1e-3)):
        problem = build(Case((512,), 0, (1, 1, 1), K, 64, io, l2norm=False))
        k, beta = problem.inputs["k"], problem.inputs["beta"]
        odd = (torch.arange(512) % 2)[:, None, None]
        k[:] = k[:1].float() + noise * odd * torch.randn(k.shape, generator=rng)
        problem.inputs["g"][:] = 0
        beta[:] = 2 * torch.rand(beta.shape, generator=rng)
        check(problem, NARROW_OPERANDS)
        beta[:] = 2
        check(problem, REFLECTIONS)


@test
def alternating_keys():
    """One key of alternating sign, and two keys in turn; beta 1 and 2, no decay."""
    for io in IO:
        for beta in (1.0, 2.0):
            for second in ("negated", "another"):
                problem = build(Case((512, 65), 0, (2, 2, 2), 128, 64, io, l2norm=beta == 1))
                k = problem.inputs["k"]
                odd = -k[0] if second == "negated" else k[1].clone()
                k[::2], k[1::2] = k[0].clone(), odd
                problem.inputs["g"][:] = 0
                problem.inputs["beta"][:] = beta
                check(problem, REFLECTIONS if beta == 2 else NARROW_OPERANDS)


@test
def zero_rows_everywhere():
    """Of q: outputs are zero; of k: nothing is written, and the state decays alone."""
    for io in IO:
        for l2norm in (False, True):
            case = Case((70, 9), 0, (2, 2, 4), 64, 64, io, l2norm=l2norm)
            problem = build(case)
            assert not run(problem, q=torch.zeros_like(problem.inputs["q"]))["o"].any()
            problem.inputs["k"][:] = 0
            check(problem)


@test
def keys_and_values_of_any_size():
    """Keys that the operator normalises, from zero to a norm of 1000; values up to 100."""
    for io, size in itertools.product(IO, (1.0, 100.0)):
        problem = build(Case((150, 65), 0, (2, 2, 4), 64, 48, io, l2norm=True))
        k, v = problem.inputs["k"], problem.inputs["v"]
        k[:] = torch.nn.functional.normalize(k.float(), dim=-1)
        v[:] = size * v.float()
        for norms in ((0.0, 1e-3, 0.05, 0.7, 1.0, 10.0, 100.0, 1000.0), (1e-3,), (1000.0,)):
            lengths = torch.tensor(norms)[torch.arange(len(k)) % len(norms)]
            scaled = (k.float() * lengths[:, None, None]).to(k.dtype)
            check(kit.replaced(problem, k=scaled))


@test
def large_values_in_fp16_stay_within_their_token():
    """A value less its prediction may pass 65504 while states do not."""
    problem = build(Case((128,), 0, (1, 1, 1), 64, 64, "fp16", l2norm=True, state=None))
    k, v = problem.inputs["k"], problem.inputs["v"]
    k[:] = k[:1].clone()
    v[:] = -40000
    problem.inputs["g"][:] = -0.1
    problem.inputs["beta"][:] = 0.5
    before = run(problem)
    v[75] = 40000
    after = run(problem)
    assert all(x.isfinite().all() for x in (*before.values(), *after.values()))
    assert torch.equal(before["o"][:75], after["o"][:75])


@test
def gates_after_many_resets_keep_their_digits():
    """An fp32 prefix sum past the resets would have lost the small gates that follow."""
    for io in IO:
        for reset in (-torch.inf, -1e4, -90.0):
            for resets in (1, 5, 27, 50):
                problem = build(Case((64, 130), 0, (2, 2, 4), 64, 64, io, regime="resets"))
                g = problem.inputs["g"]
                g[:] = -0.1 * torch.rand(g.shape, generator=torch.Generator().manual_seed(1))
                for start, _ in kit.spans(problem.case):
                    g[start + 1 : start + 1 + resets] = reset
                check(problem)


@test
def extreme_logits_and_gate_parameters():
    """Betas of exactly 0 and 1, amplitudes near the ends of fp32, gates that saturate."""
    for io in IO:
        safe = Case((140,), 0, (2, 2, 4), 64, 64, io, regime="safe", sigmoid="sigmoid")
        problem = build(replace(safe, a_log="fp32", dt_bias="fp32"))
        inputs = problem.inputs
        inputs["beta"][::3] = torch.tensor([-torch.inf, 200.0, 3.0, 0.0])
        inputs["beta"][1::3] = torch.tensor([-120.0, torch.inf, 0.0, -3.0])
        inputs["a_log"] = torch.tensor([80.0, -80.0, 88.0, 0.0])
        inputs["dt_bias"] = torch.tensor([-82.0, 0.0, 60.0, -40.0])  # heads 0, 1 and 3 keep states
        inputs["g"][5] = -torch.inf
        inputs["g"][7] = torch.tensor([0.0, 1e30, 1e30, 50.0])
        check(problem)
        problem = build(replace(safe, regime="moderate"))
        problem.inputs["g"][5::7] = torch.tensor([-110.0, -1e38, -109.0, -111.0])
        problem.inputs["g"][6::7] = torch.tensor([-0.0, -1e-30, 0.0, -1e-45])
        check(problem)


@test
def an_option_takes_effect_though_only_it_differs():
    """One set of tensors, g in (0, 0.05) here; a plan kept for other options would show."""
    for io in IO:
        problem = build(Case((57, 80), 0, (2, 2, 4), 64, 48, io, l2norm=False))
        g = problem.inputs["g"]
        g[:] = 0.05 * torch.rand(g.shape, generator=torch.Generator().manual_seed(1))
        seen = []
        for options in (
            {},
            {"scale": 0.5},
            {"scale": -2.0},
            {"use_qk_l2norm_in_kernel": True},
            {"use_beta_sigmoid_in_kernel": True},
            {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True},
            {"safe_gate": True},
            {"gate_domain": "linear"},
        ):
            problem.options = options
            check(problem)
            seen.append(run(problem)["o"])
        same = [torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i]]
        assert not any(same)


def expanding(lengths, heads):
    """(problem, outputs of the fp32 token loop): |k|^2 is about 16, the state grows some 3-fold a
    token."""
    problem = build(Case(lengths, 0, heads, 16, 16, "bf16", regime="raw", l2norm=False))
    return problem, kit.oracle.run(problem.inputs, problem.options, dtype=torch.float32)


@test
def expanding_states_are_finite_where_the_fp32_loop_is():
    for tokens in (4, 40, 60):
        for heads in ((1, 1, 1), (2, 2, 4)):
            problem, loop = expanding((tokens, 3), heads)
            assert loop["o"].abs().max() > 10.0 ** (tokens // 4)
            for name, value in run(problem).items():
                assert loop[name].isfinite().all() and value.isfinite().all(), (name, tokens)


@test
def outputs_are_finite_until_the_fp32_loop_overflows():
    """Up to the token before: within the last one the order of operations decides."""
    for heads in ((1, 1, 1), (2, 2, 4)):
        problem, loop = expanding((150, 3), heads)
        rows = run(problem)["o"][:150].isfinite().all(-1).cpu()
        loop_rows = loop["o"][:150].isfinite().all(-1)
        assert not loop_rows.all()
        for head in range(rows.shape[1]):
            finite = loop_rows[:, head]
            overflow = 150 if finite.all() else finite.int().argmin().item()
            assert overflow > 80
            lost = (~rows[: overflow - 1, head]).nonzero().flatten().tolist()
            assert not lost, f"head {head}: tokens {lost[:3]}..., overflow is at {overflow}"


if __name__ == "__main__":
    sys.exit(kit.main())

"""deltaworks bench cpu: PyTorch's forms against the definition, the arithmetic of the bound, what
is refused, and what is written."""

import csv
import json
import math
import statistics

import pytest
import torch

from deltaworks import _library
from deltaworks._library import cpu_peak
from deltaworks.cli import _cpu_measure, _cpu_report, main
from deltaworks.cli._cpu_measure import Settings, differences, measure, prepare, row_of
from deltaworks.cli._cpu_operators import OPERATORS, Case, make_inputs
from deltaworks.cli._cpu_peers import chunked, loop
from deltaworks.cli._cpu_worker import Worker
from deltaworks.cli._errors import UserError

SETTINGS = {"rounds": 2, "peer_rounds": 1, "loop_tokens": 40, "chunked_tokens": 70}
SETTINGS |= {"peak_seconds": 0.001, "threads": 1}
SMALL = ["--tokens", "80", "--heads", "2", "--dims", "32x16", "--rounds", "2"]


def case(op="gdn", dtype="fp32", tokens=80):
    return Case(op, dtype, tokens, heads=2, key_dim=32, value_dim=16)


def defined(rows):
    """The recurrence as it is written, in fp64, a head at a time; with rounding nowhere."""
    q, k, write, decay = (x.double() for x in (rows.q, rows.k, rows.write, rows.log_decay.exp()))
    erase = torch.zeros_like(k) if rows.erase is None else rows.erase.double()
    o = torch.empty(*q.shape[:2], write.shape[-1], dtype=torch.float64)
    for head in range(q.shape[1]):
        state = torch.zeros(k.shape[-1], write.shape[-1], dtype=torch.float64)
        for row in range(k.shape[0]):
            state = decay[row, head].unsqueeze(-1) * state
            new = write[row, head] - erase[row, head] @ state
            state = state + torch.outer(k[row, head], new)
            if row % rows.sub_steps == rows.sub_steps - 1:
                o[row // rows.sub_steps, head] = q[row // rows.sub_steps, head] @ state
    return o


@pytest.mark.parametrize("tokens", [1, 64, 150])
@pytest.mark.parametrize("op", OPERATORS)
def test_the_forms_of_pytorch_are_the_recurrence(op, tokens):
    tensors, d_o = make_inputs(case(op, tokens=tokens))
    leaves = {name: x.requires_grad_() for name, x in tensors.items()}
    expected = defined(OPERATORS[op].rows(**leaves))
    wanted = torch.autograd.grad(expected, list(leaves.values()), d_o.double())
    for form in (loop, chunked):
        o = form(OPERATORS[op].rows(**leaves))
        torch.testing.assert_close(o.double(), expected, rtol=1e-4, atol=1e-5)
        for gradient, right in zip(
            torch.autograd.grad(o, list(leaves.values()), d_o), wanted, strict=True
        ):
            torch.testing.assert_close(gradient, right, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("op", ["kda", "gdn"])
def test_the_chunked_form_takes_decays_that_empty_the_state(op):
    tensors, _ = make_inputs(case(op))
    tensors["g"][::7] = -90.0
    rows = OPERATORS[op].rows(**tensors)
    torch.testing.assert_close(chunked(rows).double(), defined(rows), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("op", "options"), [("gdn", {}), ("gdp", {"num_householder": 2})])
def test_rows_of_the_table(op, options):
    assert OPERATORS[op].options == options
    tensors, _ = make_inputs(case(op))
    rows = OPERATORS[op].rows(**tensors)
    n = options.get("num_householder", 1)
    assert rows.k.shape[0] == 80 * n == rows.sub_steps * rows.q.shape[0]
    decay = rows.log_decay.unflatten(0, (80, n))
    assert torch.equal(decay[:, 0, :, 0], tensors["g"]) and not decay[:, 1:].any()


def test_lane_operations():
    square = 128 * 128
    units = {op: Case(op, "fp32", 1, 1, 128, 128) for op in OPERATORS}
    forward = {op: size.lane_ops("forward") / square for op, size in units.items()}
    assert forward == {"gdn": 4, "kda": 4, "gdn2": 4, "gdp": 8, "mamba2": 3}
    backward = {op: size.lane_ops("backward") / square for op, size in units.items()}
    assert backward == {"gdn": 10, "kda": 10, "gdn2": 10, "gdp": 20, "mamba2": 7}
    assert Case("mamba2", "bf16", 1, 1, 128, 64).lane_ops("forward") == 3 * 128 * 64
    # The state is read, written and erased from; of gdp's two sub-steps one is read.
    least = {op: size.least_lane_ops("forward") / square for op, size in units.items()}
    assert least == {"gdn": 3, "kda": 3, "gdn2": 3, "gdp": 5, "mamba2": 2}
    least = {op: size.least_lane_ops("backward") / square for op, size in units.items()}
    assert least == {"gdn": 8, "kda": 8, "gdn2": 8, "gdp": 14, "mamba2": 5}


def test_a_row():
    # 80 tokens, 2 heads, 4 x 32 x 16 lane-operations: 327,680 in all.
    peers = {"chunked": (40, [8e-3, 6e-3]), "loop": (20, [4e-3])}
    row = row_of(case(), "forward", [2e-3, 1e-3, 4e-3], [1e9, 5e8, 2e9], peers)
    assert row["best_us"] == pytest.approx(1e3 / 160)
    assert row["median_us"] == pytest.approx(2e3 / 160)
    assert row["bound_us"] == pytest.approx(2048 / 1e3)
    # Rounds: 0.164, 0.655 and 0.041; the best time with the largest peak.
    assert row["fraction"] == pytest.approx(0.32768 / 2)
    assert row["best_fraction"] == pytest.approx(0.32768 / 2)
    assert row["ceiling_fraction"] == pytest.approx(0.75 * 0.32768 / 2)
    assert row["chunked_us"] == pytest.approx(7e3 / 80)
    assert row["chunked_best_us"] == pytest.approx(6e3 / 80)
    assert row["chunked_ratio"] == pytest.approx(7)
    assert row["loop_ratio"] == pytest.approx(8)
    assert row["pass"] == "forward" and row["sub_steps"] == 1


def test_a_fraction_above_the_ceiling_is_a_defect():
    row = {"isa": "AVX2", "threads": 2, "op": "gdn", "dtype": "fp32", "pass": "forward"}
    good = row | {"ceiling_fraction": 1.02, "best_fraction": 1.3}
    assert _cpu_report.impossible([good]) == []
    for bad in (1.03, math.nan, 0.0):
        [line] = _cpu_report.impossible([good, good | {"ceiling_fraction": bad}])
        assert line.startswith(f"AVX2, 2 threads: gdn fp32 forward: {bad:.3f} of the ceiling")


def test_the_peak():
    _, lanes = _library.cpu_isa()
    one = statistics.median(cpu_peak(1, 0.005) for _ in range(5))
    # A lane does between one multiply-add in 20 ns and 16 of them in 1 ns.
    assert 0.05e9 * lanes < one < 16e9 * lanes
    two = statistics.median(cpu_peak(2, 0.005) for _ in range(5))
    assert 1.2 * one < two < 3 * one
    for threads, seconds in ((0, 0.1), (1025, 0.1), (1, 0.0), (1, 61.0), (1, math.nan)):
        with pytest.raises(ValueError, match=r"must be in [1(]"):
            cpu_peak(threads, seconds)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("op", OPERATORS)
def test_a_case_is_measured(op, dtype):
    answer = measure(case(op, dtype), Settings(**SETTINGS))
    assert answer["failures"] == []
    for row, pass_ in zip(answer["rows"], ("forward", "backward"), strict=True):
        assert (row["op"], row["pass"], row["plan"]) == (op, pass_, f"{op}_cpu")
        assert len(row["seconds"]) == len(row["peaks"]) == 2 and len(row["loop_seconds"]) == 1
        assert (row["loop_tokens"], row["chunked_tokens"]) == (40, 70)
        assert all(0 < row[name] < math.inf for name in ("fraction", "chunked_ratio"))
        # One that is zero compared something with itself.
        assert 0 < row["errors"]["chunked"] < (1e-4 if dtype == "fp32" else 2e-2)


def wrong_output(tensors, cu_seqlens):
    return 1.001 * _cpu_measure.find("gdn")(tensors, cu_seqlens)


def wrong_late(tensors, cu_seqlens):
    """Right where it is short enough for the token loop."""
    o = _cpu_measure.find("gdn")(tensors, cu_seqlens)
    return torch.cat([o[:40], 1.01 * o[40:]])


def no_number(tensors, cu_seqlens):
    return torch.nan * _cpu_measure.find("gdn")(tensors, cu_seqlens)


def wrong_gradient(tensors, cu_seqlens):
    k = tensors["k"]
    k = 1.01 * k - (0.01 * k).detach()
    return _cpu_measure.find("gdn")(tensors | {"k": k}, cu_seqlens)


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        (wrong_output, "gdn fp32 32x16, 40 tokens: o differs from PyTorch's loop form by 1.0e-03"),
        (wrong_late, "gdn fp32 32x16, 70 tokens: o differs from PyTorch's chunked form by "),
        (no_number, "gdn fp32 32x16, 40 tokens: o differs from PyTorch's loop form by nan"),
        (wrong_gradient, "40 tokens: dk differs from PyTorch's loop form by 1.0e-02"),
    ],
)
def test_a_wrong_result_is_refused(operator, said):
    answer = measure(case(), Settings(**SETTINGS), operator)
    assert answer["rows"] == [] and said in answer["failures"][0]


def test_all_of_the_timed_output_is_compared():
    def wrong_when_long(tensors, cu_seqlens):
        o = _cpu_measure.find("gdn")(tensors, cu_seqlens)
        return torch.cat([o[:70], 1.01 * o[70:]])

    answer = measure(case(), Settings(**SETTINGS), wrong_when_long)
    [line] = answer["failures"]
    assert answer["rows"] == [] and line.startswith("gdn fp32 32x16, 80 tokens: o differs")


def test_a_prefix_of_the_inputs():
    tensors, d_o = make_inputs(case("gdp"))
    first, d_first = make_inputs(case("gdp"), 40)
    for name, x in first.items():
        rows = 80 if name in ("k", "v", "beta") else 40
        assert torch.equal(x, tensors[name][:rows]) and len(x) == rows
    assert torch.equal(d_first, d_o[:40])
    assert torch.equal(make_inputs(case("mamba2"), 1)[0]["A"], make_inputs(case("mamba2"))[0]["A"])


def test_differences_are_relative():
    ours = prepare(case(), _cpu_measure.find("gdn"))
    twice = ours._replace(output=2 * ours.output)
    assert differences(ours, ours) == dict.fromkeys(["o", "dq", "dk", "dv", "dg", "dbeta"], 0)
    assert differences(twice, ours)["o"] == pytest.approx(1)


def printed(capsys, *arguments, code=0):
    assert main(["bench", "cpu", *arguments]) == code
    return capsys.readouterr().out


def test_records_and_tables(capsys, tmp_path):
    """One process each for two numbers of threads."""
    options = ["--quick", "--ops", "gdn", "--dtypes", "fp32", "--threads", "1,2", *SMALL]
    files = ["--csv", str(tmp_path / "rows.csv"), "--plot", str(tmp_path / "rows.png")]
    record = json.loads(printed(capsys, *options, *files, "--record", str(tmp_path), "--json"))
    assert record["tokens"] == 80 and record["rounds"] == 2 and record["failures"] == []
    assert len(record["library_sha256"]) == 64
    for name in ("date", "processor", "deltaworks", "build", "torch", "torch_isa", "commit"):
        assert name in record
    [widest, *_] = [_library.cpu_isa()[0]]
    isas = ["AVX2", "AVX512"] if widest == "AVX512" else [widest]
    kinds = [(row["isa"], row["threads"], row["pass"]) for row in record["rows"]]
    passes = ("forward", "backward")
    assert kinds == [(isa, n, pass_) for isa in isas for n in (1, 2) for pass_ in passes]
    for row in record["rows"]:
        numbers = ("best_us", "median_us", "bound_us", "fraction", "chunked_us", "loop_us")
        assert all(0 < row[name] < math.inf for name in numbers)
        assert row["best_us"] <= row["median_us"]
    with open(tmp_path / "rows.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["pass"] for row in table] == [kind[2] for kind in kinds]
    assert [float(row["fraction"]) for row in table] == [row["fraction"] for row in record["rows"]]
    stem = f"{record['date']}-cpu-operators"
    assert json.loads((tmp_path / f"{stem}.json").read_text()) == record
    assert not (tmp_path / f"{stem}.csv").exists()  # it has a place of its own
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")


def test_the_table(capsys):
    isa, _ = _library.cpu_isa()
    options = ["--quick", "--ops", "gdn", "--dtypes", "bf16", "--threads", "1", "--isa", isa]
    out = printed(capsys, *options, *SMALL)
    assert "gdn 32x16" in out and "chunked / ours" in out and "of bound" in out
    assert out.count(isa) >= 2 and "FAILED" not in out


def test_what_fails_is_said(capsys, monkeypatch):
    monkeypatch.setattr(_cpu_report, "LARGEST_FRACTION", 1e-9)
    isa, _ = _library.cpu_isa()
    options = ["--quick", "--ops", "gdn", "--dtypes", "fp32", "--threads", "1", "--isa", isa]
    out = printed(capsys, *options, *SMALL, code=1)
    assert f"FAILED: {isa}, 1 thread: gdn fp32 forward: " in out and "of the ceiling" in out


def test_failures_of_workers_come_first():
    answer = {"isa": "AVX2", "lanes": 8, "threads": 2, "torch": "2", "torch_isa": "AVX2"}
    answer |= {"rows": [], "failures": ["o differs"]}
    record = _cpu_report.record({}, [answer])
    assert record["rows"] == [] and record["failures"] == ["AVX2, 2 threads: o differs"]


def test_a_worker_says_what_is_wrong():
    with pytest.raises(UserError, match="BOGUS, 1 thread: DELTAWORKS_ISA must be one of"):
        Worker("BOGUS", SETTINGS)
    isa, lanes = _library.cpu_isa()
    with Worker(isa, SETTINGS) as worker:
        assert worker.about["lanes"] == lanes
        with pytest.raises(UserError, match=f"{isa}, 1 thread: gated_delta_net: key dimension"):
            worker.measure(Case("gdn", "fp32", 8, 1, 600, 16))
        assert len(worker.measure(case(tokens=8))["rows"]) == 2  # it goes on


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--ops", "gdn,foo"], "must be some of gdn, kda, gdn2, gdp, mamba2, got 'gdn,foo'"),
        (["--isa", "AVX3"], "must be some of SSE4, AVX2, AVX512, NEON, got 'AVX3'"),
        (["--dtypes", "fp64"], "must be some of fp32, bf16, got 'fp64'"),
        (["--threads", "1,0"], "must be a number in 1..2147483647, got '0'"),
        (["--dims", "128"], "must be KxV, got '128'"),
        (["--csv", "nowhere/rows.csv"], "nowhere is not a folder"),
        (["--record", "nowhere"], "nowhere is not a folder"),
        (["gdn:fwd:fp32:N1T8H1K4V4", "--quick"], "--quick is of no use with a PROBLEM"),
        (["gdn:fwd:fp32:N1T8H1K4V4", "--threads", "1,2"], "--threads must be one number with a"),
    ],
)
def test_bad_usage(arguments, expected, capsys):
    assert main(["bench", "cpu", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and expected in err and "Traceback" not in err

"""deltaworks bench cuda without a card: its arithmetic, what it writes, what it refuses, and its
timing on the CPU engine, with events that read the host's clock."""

import csv
import json
import math
import sys
import time
import types

import pytest
import torch

import oracle
from deltaworks.cli import _cuda_cases as cases
from deltaworks.cli import _cuda_forward, _cuda_timing, _first_call, _plots, bench_cuda, main
from deltaworks.cli._cuda_cases import Case, Ceilings
from deltaworks.cli._errors import UserError

FAST_CARD = Ceilings(flops_per_second=1e15, bytes_per_second=1e15)


SMALL = Case(1, 64, 1, 1)


def row(case=SMALL, gates="strong", ms=1.0, **other):
    """A row as measure gives it."""
    times = {"spread_ms": 0.1, "cold_ms": ms + 0.1, "cold_spread_ms": 0.1}
    rates = {"tflops": 2.0, "gb_per_second": 3.0, "floor_fraction": 0.5}
    calls = {"call_us": 4.0, "plan_us": 5.0}
    plan = {"gates": gates, "plan": "gdn_sm80", "workspace_bytes": 6}
    return {**case._asdict(), **plan, "ms": ms, **times, **rates, **calls, **other}


def compared(peer_ms, ms=1.0, difference=1e-3, **other):
    peer = {"peer_ms": peer_ms, "peer_spread_ms": 0.1, "peer_cold_ms": peer_ms}
    peer |= {"peer_cold_spread_ms": 0.1, "peer_call_us": 7.0}
    return row(ms=ms, **peer, ratio=peer_ms / ms, difference=difference, **other)


def test_work_of_a_case():
    # A chunk and head: three products of 2 x 64 x 128 x 128 and four of 2 x 64 x 64 x 128.
    one = 3 * 2_097_152 + 4 * 1_048_576
    assert cases.flops(Case(1, 64, 1, 1)) == one == 10_485_760
    # Two chunks a sequence, the second one short; the heads of v count.
    assert cases.flops(Case(2, 100, 2, 4)) == 2 * 2 * 4 * one
    # Rows of q, k, v, o are 256 bytes, those of g and beta 4.
    assert cases.bytes_moved(Case(1, 64, 1, 1)) == 64 * (4 * 256 + 2 * 4) == 66_048
    assert cases.bytes_moved(Case(2, 100, 2, 4)) == 200 * (2 * 2 * 256 + 2 * 4 * 256 + 2 * 4 * 4)


def test_the_floor_is_the_larger_of_its_two_times():
    case = Case(1, 64, 1, 1)
    arithmetic, memory = 10_485_760 / 1e12, 66_048 / 1e9
    assert cases.floor_seconds(case, Ceilings(1e12, 1e12)) == pytest.approx(arithmetic)
    assert cases.floor_seconds(case, Ceilings(1e15, 1e9)) == pytest.approx(memory)


def test_summary():
    a, b = Case(1, 64, 1, 1), Case(2, 64, 1, 1)
    rows = [
        compared(2.0, case=a, gates="strong", ms=1.0),
        compared(2.0, case=a, gates="slow", ms=1.03),
        compared(8.0, case=b, gates="strong", ms=1.0),
        compared(8.0, case=b, gates="slow", ms=0.95),
    ]
    said = cases.summary(rows)
    expected = (2 * 2 / 1.03 * 8 * 8 / 0.95) ** 0.25
    assert said["geometric_mean_ratio"] == pytest.approx(expected)
    assert said["largest_gate_difference_percent"] == pytest.approx(100 * (1 / 0.95 - 1))
    assert cases.summary([row()]) == {
        "geometric_mean_ratio": None,
        "largest_gate_difference_percent": None,
    }


def test_what_is_a_failure():
    good = [row(floor_fraction=1.02), compared(2.0, difference=2e-2)]
    assert cases.failures(good) == []
    [line] = cases.failures([*good, row(floor_fraction=1.03)])
    assert line.startswith("1 x 64, 1 / 1, strong gates: 1.03 of the floor")
    [line] = cases.failures([*good, compared(2.0, difference=2.1e-2, gates="slow")])
    assert line.startswith("1 x 64, 1 / 1, slow gates: the outputs differ by 2.1e-02")
    assert len(cases.failures([compared(2.0, difference=math.nan)])) == 1


def test_cases():
    assert cases.parse_case("1,2048,16,32") == (1, 2048, 16, 32)
    assert Case(3, 100, 2, 4).problem("cuda1") == (
        "gdn:fwd:bf16:N3T300H2HV4K128V128:cu_seqlens=i64:device=cuda1"
    )
    assert len(set(cases.CASES)) == 8 and Case(1, 131072, 16, 16) in cases.CASES
    lengths = [case.tokens for case in cases.SWEEPS["length"]]
    assert lengths == [1024 * 2**i for i in range(8)]
    assert [case.sequences for case in cases.SWEEPS["batch"]] == [1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--case", "1,2,3"], "must be N,LEN,H,HV (sequences, tokens of each, "),
        (["--case", "1,2,3,x"], "must be a number in 1..2147483647, got 'x'"),
        (["--case", "0,2,3,6"], "must be a number in 1..2147483647, got '0'"),
        (["--case", "1,64,3,4"], "HV must be a multiple of H, got '1,64,3,4'"),
        (["--case", "1,64,4,2"], "HV must be a multiple of H, got '1,64,4,2'"),
        (["--replays", "0"], "must be a number in 1..2147483647, got '0'"),
        (["--csv", "nowhere/out.csv"], "nowhere is not a folder"),
        ([], "this benchmark needs a CUDA device: torch 2."),
    ],
)
def test_bad_usage(arguments, expected, capsys):
    assert main(["bench", "cuda", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and expected in err and "Traceback" not in err


def test_without_torch(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["bench", "cuda"]) == 2
    assert "deltaworks bench: this benchmark needs torch: " in capsys.readouterr().err


def test_without_matplotlib(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(bench_cuda.importlib.util, "find_spec", lambda name: None)
    assert main(["bench", "cuda", "--plots", str(tmp_path)]) == 2
    assert "--plots needs matplotlib" in capsys.readouterr().err


def test_plots_in_place_of_a_file(capsys, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    assert main(["bench", "cuda", "--plots", str(file)]) == 2
    assert str(file) in capsys.readouterr().err


def test_without_the_engine(monkeypatch, capsys):
    """The CPU's library has none for a card: every engine says why."""
    monkeypatch.setattr(bench_cuda, "find_card", lambda: "cuda:0")
    assert main(["bench", "cuda", "--case", "1,64,1,1"]) == 2
    first, *reasons = capsys.readouterr().err.splitlines()
    assert first.startswith("deltaworks bench: gdn:fwd:bf16:N1T64H1HV1K128V128:cu_seqlens=i64:dev")
    assert first.endswith("no engine takes this problem")
    assert any(line.startswith("  gdn_cpu: tensors must be in CPU memory") for line in reasons)


def test_first_call(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    _first_call.main("cpu")
    assert 0 < float(capsys.readouterr().out) < 60
    with pytest.raises(UserError, match="the first call in a new process fails: .*CUDA"):
        _first_call.first_call_seconds("cuda:0")


def test_the_peer_is_the_one_that_can_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "fla", None)
    assert bench_cuda.find_peer() == (None, None)
    rule = types.ModuleType("fla.ops.gated_delta_rule")
    rule.chunk_gated_delta_rule = print
    package = types.ModuleType("fla")
    package.__version__ = "9.9"
    for module in (package, types.ModuleType("fla.ops"), rule):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert bench_cuda.find_peer() == (print, "9.9")


class Event:
    """An event that reads a clock when it is recorded."""

    clock = staticmethod(time.perf_counter)

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.time = self.clock()

    def elapsed_time(self, end):
        return 1e3 * (end.time - self.time)


@pytest.fixture
def clock(monkeypatch):
    """Seconds that fakes move on; events and the host read it, and synchronising is free."""
    now = types.SimpleNamespace(seconds=0.0, waits=0)

    def wait():
        now.waits += 1

    monkeypatch.setattr(Event, "clock", lambda self: now.seconds)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    monkeypatch.setattr(_cuda_timing.time, "perf_counter", lambda: now.seconds)
    return now


def taking(clock, *seconds):
    """A call whose n-th time takes the n-th of these; the last one stays."""
    left = list(seconds)

    def call():
        clock.seconds += left.pop(0) if len(left) > 1 else left[0]

    return call


def test_device_seconds(clock):
    got = _cuda_timing.device_seconds(taking(clock, 1, 2, 3), 3, before=taking(clock, 100))
    assert got == pytest.approx([1, 2, 3])
    assert clock.waits == 1  # after all of them


def test_warm_and_cold(clock):
    order = []
    replay, flush = (lambda: order.append("replay")), (lambda: order.append("flush"))
    assert len(_cuda_timing.warm_seconds(replay, 3, flush)) == 3
    head, tail = order[:-4], order[-4:]  # an untimed replay, then three with nothing between
    assert set(head) == {"flush"} and tail == ["replay"] * 4
    order.clear()
    assert len(_cuda_timing.cold_seconds(replay, 3, flush)) == 3
    assert order == ["flush", "replay"] * 3
    assert _cuda_timing.cold_seconds(taking(clock, 1), 2, taking(clock, 9)) == [1, 1]
    assert _cuda_timing.warm_seconds(taking(clock, 5, 1), 2, taking(clock, 9)) == [1, 1]


def test_host_seconds(clock):
    assert _cuda_timing.host_seconds(taking(clock, 3)) == 3
    assert clock.waits == 2  # before and after, not between


def test_ceilings(monkeypatch):
    """Two seconds a call: a copy is read and written, a product has 2 n^3 operations."""
    monkeypatch.setattr(_cuda_timing, "_COPY_BYTES", 1000)
    monkeypatch.setattr(_cuda_timing, "_MATRIX", 16)
    ran = []

    def device_seconds(call, count):
        ran.append(call())
        return [2.0] * count

    monkeypatch.setattr(_cuda_timing, "device_seconds", device_seconds)
    assert _cuda_timing.ceilings("cpu") == Ceilings(16**3, 1000)
    copied, product = ran[0], ran[-1]
    assert (copied.dtype, copied.shape) == (torch.uint8, (1000,))
    assert (product.dtype, product.shape) == (torch.bfloat16, (16, 16)) and product.any()


def test_a_flush_is_larger_than_the_cache(monkeypatch):
    properties = types.SimpleNamespace(L2_cache_size=1000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    written = _cuda_timing.flusher("cpu")()
    assert written.numel() * written.element_size() >= 2000 and not written.any()


def test_the_card_without_nvidia_smi(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"the card {device}")
    monkeypatch.setenv("PATH", "")
    found = bench_cuda.card("cuda:0")
    assert found == {"card": "the card cuda:0", "driver": None, "torch": torch.__version__}


def test_in_turns():
    order = []

    def take(name):
        order.append(name)
        return [float(len(order)), 0.0]

    got = _cuda_timing.in_turns({"a": lambda: take("a"), "b": lambda: take("b")}, 2)
    assert order == ["a", "b", "a", "b"]
    assert got == {"a": [1, 0, 3, 0], "b": [2, 0, 4, 0]}


def test_middle():
    assert _cuda_timing.middle([1.0, 2.0, 3.0, 4.0, 50.0]) == (3.0, 2.0)


@pytest.fixture
def on_cpu(monkeypatch):
    """The device is the CPU, and a replay is the call again, into the first call's output."""

    def capture(call):
        output = call().clone()
        return (lambda: output.copy_(call())), output

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(_cuda_forward, "capture", capture)
    return _cuda_forward.Setup("cpu", loop, 2, lambda: None, FAST_CARD)


def loop(q, k, v, g, beta, scale):
    """The peer, as the oracle computes it."""
    N, length = q.shape[:2]
    names = ("q", "k", "v", "g", "beta")
    inputs = {n: x.flatten(0, 1) for n, x in zip(names, (q, k, v, g, beta), strict=True)}
    inputs["cu_seqlens"] = torch.arange(0, N * length + 1, length)
    o = oracle.run(inputs, {"scale": scale})["o"]
    return o.to(q.dtype).unflatten(0, (N, length)), None


def test_inputs():
    inputs = _cuda_forward.make_inputs(Case(3, 400, 2, 4), -2.5, "cpu")
    assert inputs["q"].shape == inputs["k"].shape == (1200, 2, 128)
    assert inputs["v"].shape == (1200, 4, 128) and inputs["v"].dtype == torch.bfloat16
    norms = inputs["k"].float().norm(dim=-1)
    torch.testing.assert_close(norms, torch.ones_like(norms), rtol=1e-2, atol=0)
    assert inputs["g"].max() <= 0 and inputs["g"].mean().item() == pytest.approx(-2.5, rel=0.05)
    assert inputs["cu_seqlens"].tolist() == [0, 400, 800, 1200]


@pytest.mark.parametrize("gates", cases.GATES)
def test_a_row(on_cpu, gates):
    case = Case(2, 70, 1, 2)
    got = _cuda_forward.measure(case, gates, on_cpu)
    assert got.keys() == compared(1.0).keys()
    assert Case(*(got[name] for name in Case._fields)) == case
    assert (got["gates"], got["plan"]) == (gates, "gdn_cpu") and got["workspace_bytes"] > 0
    assert 0 < got["difference"] < cases.LARGEST_DIFFERENCE
    assert got["ratio"] == got["peer_ms"] / got["ms"] > 1  # the oracle is slow
    seconds = 1e-3 * got["cold_ms"]
    assert got["tflops"] == pytest.approx(1e-12 * cases.flops(case) / seconds)
    assert got["gb_per_second"] == pytest.approx(1e-9 * cases.bytes_moved(case) / seconds)
    floor = cases.floor_seconds(case, FAST_CARD)
    assert got["floor_fraction"] == pytest.approx(floor / seconds)
    assert 0 < got["plan_us"] < 1e3 * got["peer_ms"] and got["call_us"] < got["peer_call_us"]


def test_which_time_is_which(on_cpu, monkeypatch):
    monkeypatch.setattr(_cuda_forward, "warm_seconds", lambda *_: [1.0])
    monkeypatch.setattr(_cuda_forward, "cold_seconds", lambda *_: [2.0])
    monkeypatch.setattr(_cuda_forward, "host_seconds", lambda *_: 3.0)
    got = _cuda_forward.measure(SMALL, "slow", on_cpu)
    assert got["ms"] == got["peer_ms"] == 1000 and got["cold_ms"] == got["peer_cold_ms"] == 2000
    assert got["call_us"] == got["peer_call_us"] == 3e6 and got["ratio"] == 1
    assert got["floor_fraction"] == pytest.approx(cases.floor_seconds(SMALL, FAST_CARD) / 2)


def test_a_row_without_the_peer(on_cpu):
    got = _cuda_forward.measure(Case(1, 64, 1, 1), "slow", on_cpu._replace(peer=None))
    assert got.keys() == row().keys()


def test_a_peer_that_computes_something_else(on_cpu):
    def wrong(q, k, v, g, beta, scale):
        return loop(q, k, v, g, beta, 1.05 * scale)

    got = _cuda_forward.measure(Case(1, 64, 1, 1), "slow", on_cpu._replace(peer=wrong))
    assert got["difference"] == pytest.approx(0.05, rel=0.1)
    assert len(cases.failures([got])) == 1


def test_a_replay_that_writes_nothing(on_cpu, monkeypatch):
    """What an earlier run left in the output does not pass for a result."""

    def capture(call):
        return (lambda: None), call().clone()

    monkeypatch.setattr(_cuda_forward, "capture", capture)
    got = _cuda_forward.measure(Case(1, 64, 1, 1), "slow", on_cpu)
    assert math.isnan(got["difference"]) and len(cases.failures([got])) == 1


def test_another_plan_than_the_one_that_was_found(on_cpu, monkeypatch):
    import deltaworks.ops

    monkeypatch.setattr(deltaworks.ops, "last_plan", lambda: "gdn_other")
    with pytest.raises(RuntimeError, match="gdn_cpu takes 1 x 64, 1 / 1, but gdn_other ran"):
        _cuda_forward.measure(Case(1, 64, 1, 1), "slow", on_cpu)


@pytest.fixture
def measured(monkeypatch):
    """The command on a machine with a card, every measurement a fake; returns what it measured."""
    seen = []

    def measure(case, gates, setup):
        seen.append((case, gates))
        assert setup[:3] == ("cuda:0", setup.peer, 10)
        make = row if setup.peer is None else compared
        peer = () if setup.peer is None else (2e-5 * case.sequences * case.tokens,)
        return make(*peer, case=case, gates=gates, ms=1e-5 * case.sequences * case.tokens)

    monkeypatch.setattr(bench_cuda, "find_card", lambda: "cuda:0")
    monkeypatch.setattr(bench_cuda, "_judge_problems", lambda cases, device: None)
    monkeypatch.setattr(bench_cuda, "find_peer", lambda: (print, "0.6.0"))
    monkeypatch.setattr(bench_cuda, "first_call_seconds", lambda device: 0.0125)
    monkeypatch.setattr(bench_cuda, "flusher", lambda device: print)
    monkeypatch.setattr(bench_cuda, "ceilings", lambda device: Ceilings(7.92e14, 4.28e12))
    monkeypatch.setattr(
        bench_cuda, "card", lambda device: {"card": "A card", "driver": "580.1", "torch": "2.11.0"}
    )
    monkeypatch.setattr(bench_cuda, "measure", measure)
    return seen


def test_the_default_cases_as_json(measured, capsys):
    assert main(["bench", "cuda", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert measured == [(case, gates) for case in cases.CASES for gates in ("strong", "slow")]
    assert len(record["rows"]) == 16 and record["sweeps"] == {} and record["failures"] == []
    assert (record["card"], record["driver"], record["peer"]) == ("A card", "580.1", "0.6.0")
    assert record["ceilings"] == {"flops_per_second": 7.92e14, "bytes_per_second": 4.28e12}
    assert record["first_call_ms"] == pytest.approx(12.5)
    assert record["summary"]["geometric_mean_ratio"] == pytest.approx(2)
    assert record["summary"]["largest_gate_difference_percent"] == 0
    assert record["processors"] >= 1 and record["deltaworks"] == "0.1.0"


def test_the_table(measured, capsys):
    assert main(["bench", "cuda", "--case", "1,64,1,2", "--case", "2,64,3,3"]) == 0
    out = capsys.readouterr().out
    assert [case for case, _ in measured[::2]] == [(1, 64, 1, 2), (2, 64, 3, 3)]
    assert "ceilings 792 TFLOP/s and 4,280 GB/s; first call of a process 12.5 ms" in out
    assert "2 x 64, 3 / 3" in out and "ratio" in out
    assert "geometric mean of the ratios: 2.000\n" in out
    assert "strong and slow gates of a case differ by at most 0.0 %\n" in out


def test_the_table_without_a_peer(measured, capsys):
    assert main(["bench", "cuda", "--case", "1,64,1,2", "--no-peer"]) == 0
    out = capsys.readouterr().out
    assert "peer: none" in out and "ratio" not in out and "peer call" not in out


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_failure_is_exit_code_1(measured, monkeypatch, capsys, as_json):
    monkeypatch.setattr(bench_cuda, "measure", lambda *_: row(floor_fraction=1.5))
    assert main(["bench", "cuda", "--case", "1,64,1,1", "--no-peer", *as_json]) == 1
    out = capsys.readouterr().out
    assert "1 x 64, 1 / 1, strong gates: 1.50 of the floor" in out
    if as_json:
        assert len(json.loads(out)["failures"]) == 2


def test_more_than_the_memory(measured, monkeypatch, capsys):
    def measure(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(bench_cuda, "measure", measure)
    assert main(["bench", "cuda", "--case", "1,64,1,1"]) == 2
    expected = "deltaworks bench: --case 1,64,1,1: more than the card's memory\n"
    assert capsys.readouterr().err == expected


def test_csv_and_plots(measured, capsys, tmp_path):
    file, folder = tmp_path / "rows.csv", tmp_path / "plots"
    options = ["--case", "1,64,1,1", "--csv", str(file), "--plots", str(folder), "--json"]
    assert main(["bench", "cuda", *options]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [case for case, gates in measured[2:] if gates == "slow"] == [
        *cases.SWEEPS["length"],
        *cases.SWEEPS["batch"],
    ]
    assert [len(record["sweeps"][name]) for name in ("length", "batch")] == [8, 5]
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [r["table"] for r in rows] == ["cases"] * 2 + ["length"] * 8 + ["batch"] * 5
    assert rows[0].keys() == {"table", *compared(1.0)}
    assert (rows[1]["gates"], float(rows[1]["ms"])) == ("slow", pytest.approx(64e-5))
    assert float(rows[-1]["ratio"]) == pytest.approx(2) and rows[-1]["sequences"] == "16"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["time-by-batch.png", "time-by-length.png"]
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_what_a_plot_shows(monkeypatch, tmp_path):
    drawn = {}
    from matplotlib.axes import Axes

    plot = Axes.plot

    def spy(self, x, y, **options):
        drawn[options["label"]] = (x, y)
        return plot(self, x, y, **options)

    monkeypatch.setattr(Axes, "plot", spy)
    rows = [compared(6.4, ms=3.2, case=Case(1, tokens, 16, 32)) for tokens in (1000, 2000)]
    [file] = _plots.draw({"length": rows}, "A card", tmp_path)
    assert file == tmp_path / "time-by-length.png" and file.exists()
    assert drawn["deltaworks"] == ([1000, 2000], pytest.approx([100, 50]))
    assert drawn["flash-linear-attention"] == ([1000, 2000], pytest.approx([200, 100]))
    drawn.clear()
    _plots.draw({"batch": [row(case=Case(n, 4096, 16, 32)) for n in (1, 2)]}, "A card", tmp_path)
    assert drawn.keys() == {"deltaworks"} and drawn["deltaworks"][0] == [1, 2]

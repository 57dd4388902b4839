"""The command line: info, explain, bad usage, and what it leaves alone."""

import json
import os
import subprocess
import sys

import pytest

from deltaworks import _library
from deltaworks.cli import main

BF16 = "gdn:fwd:bf16:N4T8192H16HV32K128V128:l2norm"
NOBODY = "gdn:fwd:bf16:N1T8H1K8V8:every=64"


def process(*arguments, **environment):
    """A run of `python -m deltaworks.cli` of its own."""
    return subprocess.run(
        [sys.executable, "-m", "deltaworks.cli", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True,
        text=True,
    )


def printed(capsys, *arguments, code=0):
    """The JSON object that a command prints, alone."""
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_info(capsys):
    facts = printed(capsys, "info")
    assert facts["version"] == "0.1.0"
    assert facts["build"] == _library.library().dw_build().decode()
    assert (facts["isa"]["name"], facts["isa"]["lanes"]) == _library.cpu_isa()
    operations = ("gdn", "kda", "gdn2", "gdp", "mamba2")
    engines = [f"{op}_{engine}" for op in operations for engine in ("cpu", "reference")]
    assert facts["engines"] == engines
    assert facts["default_threads"] == _library.library().dw_default_threads()
    assert facts["library"] == str(_library.folder() / "libdeltaworks.so.0")
    assert facts["torch"]["operators"] == str(_library.folder() / "libdeltaworks_torch.so")
    assert facts["torch"]["version"].startswith("2.")
    assert set(facts["environment"]) == {
        "DELTAWORKS_ISA",
        "DELTAWORKS_CHECK",
        "DELTAWORKS_ENGINE",
        "DELTAWORKS_LOG",
        "OMP_NUM_THREADS",
    }
    assert main(["info"]) == 0
    table = capsys.readouterr().out
    for text in (facts["isa"]["name"], "gdn_reference", facts["build"], "OMP_NUM_THREADS"):
        assert text in table


def test_info_without_torch_operators(capsys, monkeypatch, tmp_path):
    lib = _library.folder() / "libdeltaworks.so.0"
    (tmp_path / lib.name).symlink_to(lib)
    monkeypatch.setattr(_library, "folder", lambda: tmp_path)
    assert printed(capsys, "info")["torch"]["operators"] is None
    assert main(["info"]) == 0
    assert "not built" in capsys.readouterr().out


def test_info_shows_the_environment():
    result = process("info", "--json", OMP_NUM_THREADS="3", DELTAWORKS_ISA="SSE4")
    facts = json.loads(result.stdout)
    assert facts["default_threads"] == 3 and facts["isa"] == {"name": "SSE4", "lanes": 4}
    assert facts["environment"]["OMP_NUM_THREADS"] == "3"
    assert facts["environment"]["DELTAWORKS_ISA"] == "SSE4"


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_info_shows_what_is_wrong_with_the_environment(as_json):
    for variable in ("DELTAWORKS_ISA", "DELTAWORKS_ENGINE"):
        result = process("info", *as_json, **{variable: "bogus"})
        assert result.returncode == 0 and f"{variable} must be one of" in result.stdout


def test_explain(capsys):
    facts = printed(capsys, "explain", BF16)
    assert (facts["problem"], facts["runs"]) == (BF16, "gdn_cpu")
    cpu, reference = facts["engines"]
    assert cpu["accepts"] and cpu["workspace_bytes"] > 0 and cpu["configuration"]
    assert "tensors must be in CPU memory" in cpu["conditions"]
    assert not reference["accepts"] and "float64" in reference["reasons"][0]
    assert main(["explain", BF16]) == 0
    text = capsys.readouterr().out
    assert text.startswith(BF16) and "runs" in text and "declines" in text
    assert f"{cpu['workspace_bytes']:,}" in text and cpu["configuration"] in text


def test_explain_a_pinned_plan(capsys):
    facts = printed(capsys, "explain", BF16 + ":plan=gdn_reference")
    assert facts["runs"] == "gdn_reference"
    assert [engine["accepts"] for engine in facts["engines"]] == [True, True]


def test_explain_says_why_nothing_runs(capsys):
    facts = printed(capsys, "explain", NOBODY, code=1)
    assert facts["runs"] is None
    assert not any(engine["accepts"] for engine in facts["engines"])
    assert main(["explain", NOBODY]) == 1
    text = capsys.readouterr().out
    assert "checkpoint_every_n_tokens" in text and "no engine runs this problem" in text


def test_explain_says_that_the_pinned_plan_declines(capsys):
    problem = "gdn:fwd:fp64:N1T8H1K8V8"
    assert main(["explain", problem + ":plan=gdn_cpu"]) == 1
    text = capsys.readouterr().out
    assert text.endswith("gdn_cpu, which the problem pins (plan=), does not take it\n")
    assert "gdn_reference   accepts" in text
    result = process("explain", problem, DELTAWORKS_ENGINE="cpu")
    assert result.returncode == 1
    assert result.stdout.endswith("gdn_cpu, which DELTAWORKS_ENGINE names, does not take it\n")
    pinned = process("explain", problem + ":plan=gdn_reference", DELTAWORKS_ENGINE="cpu")
    assert pinned.returncode == 0 and "does not take it" not in pinned.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "arguments are required: COMMAND"),
        (["frobnicate"], "invalid choice: 'frobnicate'"),
        (["info", "more"], "unrecognized arguments: more"),
        (["explain"], "arguments are required: problem"),
        (["explain", "gdn"], "expected VARIANT:PASS:IO:DIMS"),
        (["explain", BF16 + ":neg"], "allow_neg_eigval needs use_beta_sigmoid"),
        (["explain", BF16 + ":beta=fp16"], "beta must be float32 or bfloat16, got float16"),
        (["explain", BF16 + ":plan=foo"], "plan_name must be one of gdn_cpu, gdn_reference"),
        (["verify", "gdn"], "expected VARIANT:PASS:IO:DIMS"),
        (["verify", "--seed", "-1"], "--seed must be >= 0, got -1"),
        (["verify", "--seed", "x"], "invalid int value: 'x'"),
        (["verify", "gdn:fwd:fp32:N1T100000000000H8K128V128"], "more than this machine's"),
        (["verify", "gdn:fwd:fp32:N1T9H2K4V4:q@1x1x1"], "put different values"),
        (["bench"], "arguments are required: BENCHMARK"),
        (["bench", "cpu", "gdn"], "expected VARIANT:PASS:IO:DIMS"),
        (["explain", "a\ud800"], r"no NUL and no lone surrogate, got 'a\ud800'"),
        (["bench", "cpu", "--threads", "0"], "must be a number in 1..2147483647, got '0'"),
        (["bench", "cpu", "--threads", "2147483648"], "in 1..2147483647, got '2147483648'"),
        (["bench", "cpu", "--threads", "99999999999"], "in 1..2147483647, got '99999999999'"),
        (["bench", "cpu", "--rounds", "9" * 5000], "must be a number in 1..2147483647"),
        (["bench", "cpu", "gdn:fwd:fp32:N1T0H1K4V4"], "nothing to time"),
        (["bench", "cpu", NOBODY], "no engine takes this problem"),
        (
            ["bench", "overhead", "--rounds", "many"],
            "must be a number in 1..2147483647, got 'many'",
        ),
    ],
)
def test_bad_usage(arguments, expected, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and expected in err and "Traceback" not in err


def test_bad_usage_of_a_process():
    result = process("explain", "gdn:fwd:fp32:N1T1H1K600V1")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "deltaworks explain: gdn:fwd:fp32:N1T1H1K600V1: gated_delta_net: "
        "key dimension of q must be in 1..512, got 600\n"
    )


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        ("gdn", "problem string: expected VARIANT:PASS:IO:DIMS[:OPTION]..., got 'gdn'"),
        ("x" * 5000, f"{'x' * 5000}: problem string: expected at most 4096 bytes, got 5000"),
        ("a\nb", r"problem string: expected VARIANT:PASS:IO:DIMS[:OPTION]..., got 'a\x0ab'"),
        ("gdn\0", r"problem string must hold no NUL and no lone surrogate, got 'gdn\x00'"),
    ],
)
def test_an_error_names_the_problem_once(problem, expected, capsys):
    assert main(["explain", problem]) == 2
    assert capsys.readouterr().err == f"deltaworks explain: {expected}\n"


def test_control_characters_are_not_echoed(capsys):
    for arguments in (
        ["explain", "gdn:fwd:\x1b[31mfp99:N1T1H1K1V1\n\r"],
        ["explain", BF16 + ":plan=\x1b[31m\n"],
        ["run", "\x1b[31m\n"],
        ["run", "file", "--output", "\x1b[31m\n/out"],
        ["frob\x1b[31mnicate\n"],
        ["info", "\x1b[31m\n"],
    ):
        assert main(arguments) == 2
        *usage, error = capsys.readouterr().err.splitlines()
        assert error.startswith("deltaworks") and "\\x1b[31m" in error
        assert "\x1b" not in error and (not usage or usage[0].startswith("usage: "))


def test_what_no_engine_takes_is_a_line_a_reason(capsys):
    assert main(["bench", "cpu", NOBODY]) == 2
    first, *reasons = capsys.readouterr().err.splitlines()
    assert first == f"deltaworks bench: {NOBODY}: gated_delta_net: no engine takes this problem"
    assert [line.split(":")[0] for line in reasons] == ["  gdn_cpu", *["  gdn_reference"] * 2]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["info"], ["explain", BF16, "--json"]]
)
def test_output_that_cannot_be_written(arguments, unbuffered):
    command = [sys.executable, "-m", "deltaworks.cli", *arguments]
    paths = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            command, env=os.environ | paths, stdout=full, stderr=subprocess.PIPE, text=True
        )
    name = " ".join(["deltaworks", *arguments[:1]]) if arguments[0][0] != "-" else "deltaworks"
    expected = f"{name}: cannot write the output: No space left on device\n"
    assert (result.returncode, result.stderr) == (2, expected)


def test_help_and_version(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for command in ("info", "explain", "run", "verify", "bench"):
        assert command in out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "0.1.0\n"


def test_without_the_library(capsys, monkeypatch, tmp_path):
    _library.library.cache_clear()
    monkeypatch.setattr(_library, "folder", lambda: tmp_path)
    try:
        for arguments in (["info"], ["explain", BF16], ["verify"], ["bench", "cpu"]):
            assert main(arguments) == 2
            assert "libdeltaworks.so.0 is missing" in capsys.readouterr().err
    finally:
        _library.library.cache_clear()


@pytest.mark.parametrize(("as_json", "first"), [("--json", "{"), ("", " ")])
def test_a_reader_that_stops_early(as_json, first):
    command = f"{sys.executable} -m deltaworks.cli verify {as_json}"
    shell = f"{command} | head -c 1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", shell],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, first, "")


def test_torch_is_not_imported():
    script = (
        "import sys; from deltaworks.cli import main\n"
        f"codes = [main(x) for x in (['info'], ['explain', '{BF16}'],"
        " ['verify', 'gdn:fwd:fp32:N1T9H2K4V4'], ['bench', 'cpu', 'gdn:fwd:fp32:N1T9H2K4V4'])]\n"
        "sys.exit(codes != [0, 0, 0, 0] or 'torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr

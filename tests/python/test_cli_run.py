"""deltaworks run: captured calls again, and the files it must not touch."""

import json
import os

import numpy as np
import pytest
import safetensors

import deltaworks.numpy
from deltaworks import Problem, _library
from deltaworks.cli import main, run
from deltaworks.testing import capture, files, make_inputs, run_problem
from deltaworks.testing.arrays import same_bits

PROBLEM = "gdn:fwd:bf16:N2T9H2K8V4:g=bf16:final"


@pytest.fixture
def captured(tmp_path):
    """The path of a captured call."""
    path = tmp_path / "call.safetensors"
    with capture(path):
        deltaworks.numpy.gated_delta_net(**make_inputs(Problem(PROBLEM)), output_final_state=True)
    return path


def test_writes_and_shows_the_results(captured, capsys):
    assert main(["run", str(captured)]) == 0
    text = capsys.readouterr().out
    output = captured.with_name("call.results.safetensors")
    assert PROBLEM in text and "ran on gdn_cpu" in text and "9 x 2 x 4" in text
    arrays, metadata, _ = files.load(output)
    expected = run_problem(Problem(PROBLEM), make_inputs(Problem(PROBLEM)))
    assert arrays.keys() == expected.keys() == {"o", "final_state"}
    assert all(same_bits(arrays[name], expected[name]) for name in arrays)
    assert metadata["format"] == "deltaworks results 1"
    assert (metadata["problem"], metadata["plan"]) == (PROBLEM, "gdn_cpu")
    assert metadata["isa"] == _library.cpu_isa()[0]


def test_json(captured, capsys, tmp_path):
    output = tmp_path / "elsewhere.safetensors"
    arguments = ["run", str(captured), "--output", str(output), "--plan", "gdn_reference"]
    assert main([*arguments, "--check", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    ran = PROBLEM + ":plan=gdn_reference"
    assert (record["problem"], record["plan"]) == (ran, "gdn_reference")
    assert files.load(output)[1]["problem"] == ran
    assert record["output"] == str(output) and output.exists()
    o = run_problem(Problem(PROBLEM), make_inputs(Problem(PROBLEM)), "gdn_reference")["o"]
    o = o.astype(np.float64)
    assert record["tensors"][0] == {
        "tensor": "o",
        "dtype": "bfloat16",
        "shape": [9, 2, 4],
        "min": o.min(),
        "max": o.max(),
        "rms": pytest.approx(np.sqrt(np.square(o).mean())),
        "not_finite": 0,
    }
    assert [row["ok"] for row in record["check"]] == [True, True]
    assert record["check"][0]["error"] == 0


def test_check_fails_where_results_are_wrong(captured, capsys, monkeypatch):
    class Wrong(run.Run):
        def execute(self):
            super().execute()
            self.outputs["o"][4] = 0

    monkeypatch.setattr(run, "Run", Wrong)
    assert main(["run", str(captured), "--check"]) == 1
    assert "OUT OF BOUNDS" in capsys.readouterr().out
    assert main(["run", str(captured), "--check", "--json", "--force"]) == 1
    check = json.loads(capsys.readouterr().out)["check"]
    assert {row["tensor"]: row["ok"] for row in check} == {"o": False, "final_state": True}


def test_counts_what_is_not_finite(tmp_path, capsys):
    inputs = make_inputs(Problem("gdn:fwd:fp32:N1T4H1K4V4"))
    inputs["v"][2, 0, 1] = np.nan
    path = tmp_path / "call.safetensors"
    with capture(path):
        deltaworks.numpy.gated_delta_net(**inputs)
    assert main(["run", str(path), "--json"]) == 0
    [o] = json.loads(capsys.readouterr().out)["tensors"]
    assert o["not_finite"] == 2 and np.isfinite(o["rms"])


def test_existing_results_stay(captured, capsys):
    output = captured.with_name("call.results.safetensors")
    output.write_text("precious")
    assert main(["run", str(captured)]) == 2
    assert "exists; --force overwrites it" in capsys.readouterr().err
    assert output.read_text() == "precious"
    assert main(["run", str(captured), "--force"]) == 0
    assert files.load(output)[1]["problem"] == PROBLEM


@pytest.mark.parametrize("force", [[], ["--force"]])
@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_the_input_is_never_overwritten(captured, capsys, link, force):
    before, output = captured.read_bytes(), captured
    if link is not None:
        output = captured.with_name("link.safetensors")
        link(captured, output)
    assert main(["run", str(captured), "--output", str(output), *force]) == 2
    assert "is the input" in capsys.readouterr().err
    assert captured.read_bytes() == output.read_bytes() == before


def test_a_name_without_the_suffix(captured, capsys):
    other = captured.rename(captured.with_name("call"))
    assert main(["run", str(other)]) == 0
    assert captured.with_name("call.results.safetensors").exists()


def damaged(path):
    path.write_bytes(path.read_bytes()[:-1])


def malformed(path):
    """cu_seqlens that decrease: a captured call that fails."""
    arrays, metadata, _ = files.load(path)
    arrays["cu_seqlens"][:] = [0, 7, 5]
    files.save(path, arrays, metadata)


def unlike(path):
    with safetensors.safe_open(path, framework="np") as file:
        metadata = file.metadata()
    arrays, _, _ = files.load(path)
    files.save(path, arrays, metadata | {"problem": PROBLEM.replace("T9", "T8")})


@pytest.mark.parametrize(
    ("spoil", "arguments", "expected"),
    [
        (lambda path: path.unlink(), [], "No such file"),
        (damaged, [], "not a safetensors file"),
        (malformed, [], "cu_seqlens must not decrease, got 7 then 5"),
        (unlike, [], "q must have shape [8, 2, 8], got [9, 2, 8]"),
        (lambda path: None, ["--plan", "gdn_gpu"], "plan_name must be one of gdn_cpu"),
        (lambda path: None, ["--plan", "gdn_cpu\0"], "plan_name must hold no NUL"),
        (lambda path: None, ["--output", "/none/at/all"], "/none/at is not a folder"),
    ],
)
def test_bad_files_and_options(captured, capsys, spoil, arguments, expected):
    spoil(captured)
    assert main(["run", str(captured), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and expected in err and "Traceback" not in err
    assert [path for path in captured.parent.iterdir() if path != captured] == []


@pytest.mark.parametrize("file", [".", "/", "", "..", "\0"])
@pytest.mark.parametrize("output", [[], ["--output", "o"]])
def test_what_is_no_file(file, output, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", file, *output]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("deltaworks run: ") and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_call_that_nobody_takes(tmp_path, capsys):
    path = tmp_path / "call.safetensors"
    inputs = make_inputs(Problem("gdn:fwd:fp32:N1T4H1K4V4"))
    with pytest.raises(NotImplementedError), capture(path):
        deltaworks.numpy.gated_delta_net(**inputs, checkpoint_every_n_tokens=16)
    assert main(["run", str(path)]) == 2
    assert "checkpoint_every_n_tokens must be 0" in capsys.readouterr().err

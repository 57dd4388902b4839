"""The operator in a process with other threads, and in a forked child."""

import os
import subprocess
import sys
import textwrap
import threading
import time

import torch

from cases import Case, build
from deltaworks.ops import gated_delta_net, last_plan, workspace_bytes
from run_op import assert_same_bits, run

HERE = os.path.dirname(os.path.abspath(__file__))


def script(text):
    """Runs a script beside these modules, with this process's import path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([HERE, *filter(None, sys.path)])}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )


def test_a_forked_child_computes_the_same_bits():
    """The parent has used its threads before the fork; a hang is ended by the alarm.

    The script compares bytes, since torch's own parallel operations hang in such a child.
    """
    result = script(
        """
        import os, signal, torch
        from cases import Case, build
        from run_op import run

        def compute():
            return {name: x.numpy().tobytes() for name, x in run(problem).items()}

        torch.set_num_threads(2)
        problem = build(Case(lengths=(300, 0, 150), heads=(2, 2, 4), K=64, V=64))
        expected = compute()
        for _ in range(3):
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                status = 1
                try:
                    assert compute() == expected
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0, "the child failed"
            assert compute() == expected
        print("both agree")
        """
    )
    assert result.stdout.strip() == "both agree", result.stdout + result.stderr


def test_import_does_not_import_torch():
    result = script("import sys, deltaworks; print('torch' in sys.modules)")
    assert result.stdout.strip() == "False", result.stderr


def test_a_child_forked_while_calls_run_does_not_hang():
    """Another thread keeps making and caching plans; none of its locks may stay held in a child."""
    result = script(
        """
        import os, signal, threading, torch
        from deltaworks.ops import gated_delta_net

        def call(tokens):
            x = torch.ones(tokens, 1, 1)
            with torch.no_grad():
                gated_delta_net(x, x, x, -x[..., 0], x[..., 0], torch.tensor([0, tokens]))

        def cycle():
            tokens = 0
            while not stop.is_set():
                tokens = tokens % 600 + 1
                call(tokens)

        torch.set_num_threads(1)
        stop = threading.Event()
        thread = threading.Thread(target=cycle)
        thread.start()
        try:
            for _ in range(60):
                child = os.fork()
                if child == 0:
                    signal.alarm(10)
                    call(601)
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0, "the child hung"
        finally:
            stop.set()
            thread.join()
        """
    )
    assert result.returncode == 0, result.stderr


def test_threads_follow_torch():
    """The workspace has one scratch a thread."""
    problem, threads = (
        build(Case(lengths=(40, 40), heads=(2, 2, 2), K=64, V=64)),
        torch.get_num_threads(),
    )
    booked = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            run(problem)
            booked.append(workspace_bytes())
    finally:
        torch.set_num_threads(threads)
    assert booked[0] < booked[1] < booked[2]
    assert booked[1] - booked[0] == booked[2] - booked[1]


def test_a_python_thread_runs_during_a_call():
    """Forward and backward release the interpreter's lock."""
    problem = build(Case(lengths=(24000,), heads=(4, 4, 4), K=128, V=128))
    leaves = {name: x.detach() for name, x in problem.inputs.items()}
    leaves["k"].requires_grad_()
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        start = time.perf_counter()
        o, _ = gated_delta_net(**leaves, plan_name="gdn_cpu", **problem.options)
        middle = time.perf_counter()
        torch.autograd.grad(o, leaves["k"], problem.d_o)
        end = time.perf_counter()
    finally:
        stop.set()
        thread.join()
    for a, b in ((start, middle), (middle, end)):
        assert b - a > 0.01, "too short a call to tell"
        inside = sum(a + 0.1 * (b - a) < t < b - 0.1 * (b - a) for t in ticks)
        assert inside >= 3, f"{inside} ticks in {b - a:.3f} s"


def test_threads_compute_the_same_bits_side_by_side():
    problems = [build(Case(lengths=(90, 0, 33), heads=(2, 2, 4), seed=seed)) for seed in range(4)]
    expected = [run(problem) for problem in problems]
    failures = []

    def work(problem, reference):
        try:
            for _ in range(10):
                assert_same_bits(run(problem), reference)
                assert last_plan() == "gdn_cpu"
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(problems, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_last_plan_is_kept_per_thread():
    run(build(Case()))
    seen = []
    thread = threading.Thread(target=lambda: seen.append(last_plan()))
    thread.start()
    thread.join()
    assert seen == [""] and last_plan() == "gdn_cpu"

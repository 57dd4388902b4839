"""libdeltaworks over ctypes: the structs, constants and functions of deltaworks/c_api.h.

The library is loaded on first use, so that `import deltaworks` works in a tree that is not built.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import NamedTuple

from deltaworks.errors import from_status

FLOAT32, BFLOAT16, FLOAT16, FLOAT64, INT32, INT64 = range(6)
BOOL, UINT8, INT8, INT16, COMPLEX64, OTHER = range(6, 12)  # named in errors only
CPU, CUDA, OTHER_DEVICE = range(3)
FORWARD, BACKWARD = range(2)
(
    GATED_DELTA_NET,
    KIMI_DELTA_ATTENTION,
    GATED_DELTA_NET_V2,
    GATED_DELTA_PRODUCT,
    MAMBA2,
) = range(5)

# Ports: the tensors of an operation, by number. An operation may call some by other names:
# _operations.py.
PORTS = (
    "q",
    "k",
    "v",
    "g",
    "beta",
    "a_log",
    "dt_bias",
    "cu_seqlens",
    "initial_state",
    "state_indices",
    "o",
    "final_state",
    "dO",
    "d_final_state",
    "dq",
    "dk",
    "dv",
    "dg",
    "dbeta",
    "da_log",
    "ddt_bias",
    "d_initial_state",
    "w",
    "D",
    "z",
    "dw",
    "dD",
    "dz",
)
PORT_COUNT = len(PORTS)
(
    Q,
    K,
    V,
    G,
    BETA,
    A_LOG,
    DT_BIAS,
    CU_SEQLENS,
    INITIAL_STATE,
    STATE_INDICES,
    OUT,  # DW_O
    FINAL_STATE,
    DO,
    D_FINAL_STATE,
    DQ,
    DK,
    DV,
    DG,
    DBETA,
    DA_LOG,
    DDT_BIAS,
    D_INITIAL_STATE,
    W,
    D,
    Z,
    DW,
    DD,
    DZ,
) = range(PORT_COUNT)

# Bits of the flags.
L2NORM = 1
BETA_SIGMOID = 2
ALLOW_NEG_EIGVAL = 4
SAFE_GATE = 8
BATCH_INVARIANT = 16
OUTPUT_FINAL_STATE = 32
OVERWRITE_INITIAL_STATE = 64
REQUIRES_GRADIENT = 128
HAS_SCALE = 256
HAS_CHECKPOINT_DTYPE = 512
BETA_GUARD = 1024
HAS_GATE_LOWER_BOUND = 2048
DT_LINEAR = 4096
HAS_DT_MAX = 8192

MAX_RANK = 4
SONAME = "libdeltaworks.so.0"


class Tensor(ctypes.Structure):
    """dw_tensor: strides in elements; axes past the fourth are not described."""

    _fields_ = [
        ("port", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("device_type", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_RANK),
        ("stride", ctypes.c_int64 * MAX_RANK),
    ]

    def sizes(self) -> tuple[int, ...]:
        return tuple(self.shape[: min(self.ndim, MAX_RANK)])

    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return tuple(self.stride[: min(self.ndim, MAX_RANK)])


class Problem(ctypes.Structure):
    """dw_problem: an operator call without its data. Holds its tensors' descriptions itself."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("op", ctypes.c_int32),
        ("pass_", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("threads", ctypes.c_int32),
        ("tensors", ctypes.POINTER(Tensor)),
        ("tensor_count", ctypes.c_size_t),
        ("gate_domain", ctypes.c_char_p),
        ("plan_name", ctypes.c_char_p),
        ("scale", ctypes.c_double),
        ("checkpoint_every_n_tokens", ctypes.c_int64),
        ("checkpoint_dtype", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("gate", ctypes.c_char_p),
        ("gate_lower_bound", ctypes.c_double),
        ("num_householder", ctypes.c_int64),
        ("dt_min", ctypes.c_double),
        ("dt_max", ctypes.c_double),
    ]

    def __init__(self, **values):
        super().__init__(struct_size=ctypes.sizeof(Problem), **values)
        self._memory = (Tensor * PORT_COUNT)()
        self.tensors = ctypes.cast(self._memory, ctypes.POINTER(Tensor))

    def add(self, port, dtype, shape, stride, device_type=CPU, device_index=0) -> None:
        """Describes one more tensor; strides in elements."""
        tensor = self._memory[self.tensor_count]
        tensor.port = port
        tensor.dtype = dtype
        tensor.device_type = device_type
        tensor.device_index = device_index
        tensor.ndim = len(shape)
        axes = min(len(shape), MAX_RANK)
        tensor.shape[:axes] = shape[:axes]
        tensor.stride[:axes] = stride[:axes]
        self.tensor_count += 1

    def add_outputs(self, wanted: int = 0) -> list[Tensor]:
        """Adds what the pass writes (dw_describe_outputs), contiguous, and returns it."""
        outputs = (Tensor * PORT_COUNT)()
        count = ctypes.c_size_t()
        require(
            library().dw_describe_outputs(
                ctypes.byref(self), wanted, outputs, PORT_COUNT, ctypes.byref(count)
            )
        )
        for tensor in outputs[: count.value]:
            self._memory[self.tensor_count] = tensor
            self.tensor_count += 1
        return outputs[: count.value]

    def described(self) -> list[Tensor]:
        """The tensors that take part."""
        return self.tensors[: self.tensor_count]


class Dims(ctypes.Structure):
    """dw_dims: the sizes that a valid problem's tensors agree on."""

    _fields_ = [(name, ctypes.c_int64) for name in ("T", "N", "K", "V", "H", "HK", "HV", "HO")]


class Verdict(NamedTuple):
    """What an engine says of a problem."""

    plan_name: str
    reasons: tuple[str, ...]  # unmet conditions, each with what was found; none: it accepts
    conditions: tuple[str, ...]  # its whole support column
    workspace_bytes: int  # of an engine that accepts
    configuration: str  # of an engine that accepts

    @property
    def accepts(self) -> bool:
        return not self.reasons


class Plan:
    """An engine's answer to a problem."""

    def __init__(self, problem: Problem):
        """Finds the plan; raises what is wrong with the problem."""
        self._lib = library()
        self._plan = ctypes.c_void_p()
        require(self._lib.dw_plan_find(ctypes.byref(problem), ctypes.byref(self._plan)))
        self.name = self._lib.dw_plan_name(self._plan).decode()
        self.configuration = self._lib.dw_plan_configuration(self._plan).decode()
        self.workspace_bytes = self._lib.dw_plan_workspace_bytes(self._plan)

    def __del__(self):
        if getattr(self, "_plan", None):
            self._lib.dw_plan_release(self._plan)

    def execute(self, pointers: dict[int, int], workspace: int | None) -> None:
        """Runs on addresses by port; `workspace` is the address of workspace_bytes bytes."""
        require(self._lib.dw_plan_execute(self._plan, *_pack(pointers), workspace, None))

    def time(self, pointers: dict[int, int], workspace: int | None, calls: int):
        """Seconds of an execution and of the kernels in it, medians of `calls`."""
        execute, kernel = ctypes.c_double(), ctypes.c_double()
        require(
            self._lib.dw_plan_time(
                self._plan,
                *_pack(pointers),
                workspace,
                calls,
                ctypes.byref(execute),
                ctypes.byref(kernel),
            )
        )
        return execute.value, kernel.value


def _pack(pointers):
    array = (ctypes.c_void_p * PORT_COUNT)()
    for port, address in pointers.items():
        array[port] = address
    return array, PORT_COUNT


def folder() -> Path:
    """Where the built libraries lie."""
    return Path(__file__).with_name("lib")


def shared_object(name: str) -> Path:
    """Path of a built library; ImportError if it is not there."""
    path = folder() / name
    if not path.exists():
        raise ImportError(
            f"deltaworks: {path} is missing: in a source tree, build it with ./dev setup; an "
            f"installed package was built without it"
        )
    return path


@functools.cache
def library() -> ctypes.CDLL:
    """libdeltaworks with the signatures that Python uses."""
    lib = ctypes.CDLL(str(shared_object(SONAME)))
    void, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    problem, sizes = ctypes.POINTER(Problem), ctypes.POINTER(size)
    tensors, doubles = ctypes.POINTER(Tensor), ctypes.POINTER(ctypes.c_double)
    status = ctypes.c_int32
    for name, result, arguments in (
        ("dw_validate", status, [problem, ctypes.POINTER(Dims)]),
        ("dw_check", status, [problem]),
        ("dw_describe_outputs", status, [problem, ctypes.c_uint64, tensors, size, sizes]),
        ("dw_problem_parse", status, [text, problem, tensors, size]),
        ("dw_problem_format", status, [problem, text, size, sizes]),
        ("dw_explain", status, [problem, ctypes.POINTER(void)]),
        ("dw_verdicts_release", None, [void]),
        ("dw_verdicts_count", size, [void]),
        ("dw_verdict_plan", text, [void, size]),
        ("dw_verdict_reason_count", size, [void, size]),
        ("dw_verdict_reason", text, [void, size, size]),
        ("dw_verdict_condition_count", size, [void, size]),
        ("dw_verdict_condition", text, [void, size, size]),
        ("dw_verdict_workspace_bytes", size, [void, size]),
        ("dw_verdict_configuration", text, [void, size]),
        ("dw_plan_find", status, [problem, ctypes.POINTER(void)]),
        ("dw_plan_release", None, [void]),
        ("dw_plan_name", text, [void]),
        ("dw_plan_configuration", text, [void]),
        ("dw_plan_workspace_bytes", size, [void]),
        ("dw_plan_execute", status, [void, ctypes.POINTER(void), size, void, void]),
        (
            "dw_plan_time",
            status,
            [void, ctypes.POINTER(void), size, void, ctypes.c_int64, doubles, doubles],
        ),
        ("dw_last_error", text, []),
        ("dw_last_rule", text, []),
        ("dw_last_plan", text, []),
        ("dw_last_workspace_bytes", size, []),
        ("dw_cpu_isa", text, [ctypes.POINTER(ctypes.c_int32)]),
        ("dw_cpu_peak", status, [ctypes.c_int32, ctypes.c_double, doubles]),
        ("dw_default_threads", ctypes.c_int32, []),
        ("dw_version", text, []),
        ("dw_build", text, []),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def require(status: int) -> None:
    """Raises the exception of a status other than 0, with the library's text."""
    if status != 0:
        raise from_status(status, library().dw_last_error().decode())


def check(problem: Problem) -> None:
    """Judges a problem: shapes, dtypes, combinations, and that some engine takes it."""
    require(library().dw_check(ctypes.byref(problem)))


def validate(problem: Problem) -> Dims:
    """Judges a problem before any engine is asked."""
    dims = Dims()
    require(library().dw_validate(ctypes.byref(problem), ctypes.byref(dims)))
    return dims


def parse_problem(text: str) -> Problem:
    """Reads a problem string (docs/problems.md); ValueError says what is wrong with it."""
    problem = Problem()
    memory = problem._memory
    require(library().dw_problem_parse(text.encode(), ctypes.byref(problem), memory, PORT_COUNT))
    return problem


def format_problem(problem: Problem) -> str:
    """The problem string of a valid problem."""
    needed = ctypes.c_size_t()
    lib = library()
    require(lib.dw_problem_format(ctypes.byref(problem), None, 0, ctypes.byref(needed)))
    text = ctypes.create_string_buffer(needed.value)
    require(lib.dw_problem_format(ctypes.byref(problem), text, needed.value, None))
    return text.value.decode()


def explain(problem: Problem) -> list[Verdict]:
    """Every engine's verdict on a valid problem, in the order they are asked."""
    lib = library()
    found = ctypes.c_void_p()
    require(lib.dw_explain(ctypes.byref(problem), ctypes.byref(found)))
    try:
        return [
            Verdict(
                lib.dw_verdict_plan(found, i).decode(),
                tuple(
                    lib.dw_verdict_reason(found, i, j).decode()
                    for j in range(lib.dw_verdict_reason_count(found, i))
                ),
                tuple(
                    lib.dw_verdict_condition(found, i, j).decode()
                    for j in range(lib.dw_verdict_condition_count(found, i))
                ),
                lib.dw_verdict_workspace_bytes(found, i),
                lib.dw_verdict_configuration(found, i).decode(),
            )
            for i in range(lib.dw_verdicts_count(found))
        ]
    finally:
        lib.dw_verdicts_release(found)


def last_rule() -> str:
    """Name of the rule that the last failure on this thread broke; "" if none did."""
    return library().dw_last_rule().decode()


def last_plan() -> str:
    """Name of the plan that executed last on this thread ("gdn_cpu"); "" before the first."""
    return library().dw_last_plan().decode()


def last_workspace_bytes() -> int:
    """Bytes of workspace of that plan."""
    return library().dw_last_workspace_bytes()


def cpu_isa() -> tuple[str, int]:
    """The instruction set that the CPU engine uses ("AVX2") and its fp32 lanes.

    The environment variable DELTAWORKS_ISA forces one; ValueError where it names none that runs
    here.
    """
    lanes = ctypes.c_int32()
    isa = library().dw_cpu_isa(ctypes.byref(lanes))
    if isa is None:
        raise ValueError(library().dw_last_error().decode())
    return isa.decode(), lanes.value


def cpu_peak(threads: int, seconds: float) -> float:
    """fp32 multiply-adds of single lanes a second, of that many threads together.

    ValueError unless threads is in 1..1024 and seconds in (0, 60].
    """
    rate = ctypes.c_double()
    require(library().dw_cpu_peak(threads, seconds, ctypes.byref(rate)))
    return rate.value

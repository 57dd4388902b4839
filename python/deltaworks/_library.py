"""libdeltaworks over ctypes: the structs, constants and functions of deltaworks/c_api.h.

The library is loaded on first use, so that `import deltaworks` works in a tree that is not built.
"""

import ctypes
import functools
from pathlib import Path

from deltaworks.errors import from_status

FLOAT32, BFLOAT16, FLOAT16, FLOAT64, INT32, INT64 = range(6)
BOOL, UINT8, INT8, INT16, COMPLEX64, OTHER = range(6, 12)  # named in errors only
CPU, CUDA, OTHER_DEVICE = range(3)
FORWARD, BACKWARD = range(2)
GATED_DELTA_NET = 0

# Ports: the tensors of an operation, by number.
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
    PORT_COUNT,
) = range(22)

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
HAS_STATE_INDICES = 512

_MAX_RANK = 4


class Tensor(ctypes.Structure):
    """dw_tensor: strides in elements; axes past the fourth are not described."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("present", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("device_type", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("shape", ctypes.c_int64 * _MAX_RANK),
        ("stride", ctypes.c_int64 * _MAX_RANK),
    ]

    def describe(self, dtype, device_type, device_index, shape, stride):
        """Fills everything but the data pointer."""
        self.present = 1
        self.dtype = dtype
        self.device_type = device_type
        self.device_index = device_index
        self.ndim = len(shape)
        self.shape[: min(len(shape), _MAX_RANK)] = shape[:_MAX_RANK]
        self.stride[: min(len(shape), _MAX_RANK)] = stride[:_MAX_RANK]


class Call(ctypes.Structure):
    """dw_call: an operator call as plain values."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("op", ctypes.c_int32),
        ("pass_", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("threads", ctypes.c_int32),
        ("scale", ctypes.c_double),
        ("checkpoint_every_n_tokens", ctypes.c_int64),
        ("gate_domain", ctypes.c_char_p),
        ("plan_name", ctypes.c_char_p),
        ("tensors", Tensor * PORT_COUNT),
    ]

    def __init__(self, **values):
        super().__init__(struct_size=ctypes.sizeof(Call), **values)


def folder() -> Path:
    """Where the built libraries lie."""
    return Path(__file__).with_name("lib")


def shared_object(name: str) -> Path:
    """Path of a built library; ImportError if it is not there."""
    path = folder() / name
    if not path.exists():
        raise ImportError(f"deltaworks is not built: {path} is missing; run ./dev setup")
    return path


@functools.cache
def library() -> ctypes.CDLL:
    """libdeltaworks with the signatures that Python uses."""
    lib = ctypes.CDLL(str(shared_object("libdeltaworks.so")))
    lib.dw_check.argtypes = [ctypes.POINTER(Call)]
    lib.dw_check.restype = ctypes.c_int32
    lib.dw_explain.argtypes = [
        ctypes.POINTER(Call),
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_size_t),
    ]
    lib.dw_explain.restype = ctypes.c_int32
    lib.dw_cpu_isa.argtypes = [ctypes.POINTER(ctypes.c_int32)]
    for function in (lib.dw_last_error, lib.dw_last_plan, lib.dw_cpu_isa, lib.dw_version):
        function.restype = ctypes.c_char_p
    return lib


def require(status: int) -> None:
    """Raises the exception of a status other than 0, with the library's text."""
    if status != 0:
        raise from_status(status, library().dw_last_error().decode())


def check(call: Call) -> None:
    """Judges a call: shapes, dtypes, combinations, and that some engine takes it."""
    require(library().dw_check(ctypes.byref(call)))


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

"""Capsules made by hand, byte for byte as dlpack.h has them: what is read, and who frees it.

The structs are written down anew here, as numbers of struct.pack, so that a wrong field of the
package cannot be wrong alike on both sides.
"""

import ctypes
import gc
import struct

import numpy as np
import pytest

from deltaworks import NotSupportedError, _library
from deltaworks.numpy import gated_delta_net, gated_delta_net_backward
from test_errors import failure

INT, UINT, FLOAT, BFLOAT = 0, 1, 2, 4
NAMES = {False: b"dltensor", True: b"dltensor_versioned"}

api = ctypes.PyDLL(None)
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
api.PyCapsule_IsValid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
Freeing = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class Producer:
    """An object with __dlpack__ whose capsules free their tensor as the protocol says."""

    def __init__(self, data, shape, code, bits, strides=None, **changes):
        self.data, self.shape, self.strides = data, shape, strides
        self.dtype = struct.pack("=BBH", code, bits, changes.pop("lanes", 1))
        self.versioned = changes.pop("versioned", True)
        self.version = changes.pop("version", (1, 3))
        self.byte_offset = changes.pop("byte_offset", 0)
        self.device = changes.pop("device", (1, 0))
        self.name = changes.pop("name", NAMES[self.versioned])
        assert not changes
        self.made, self.freed, self.asked = [], [], []
        self.deleter = Freeing(self.freed.append)
        self.destructor = Freeing(self.destroy)

    def destroy(self, capsule):
        if api.PyCapsule_IsValid(capsule, self.name) and self.name in NAMES.values():
            self.deleter(len(self.freed))

    def tensor(self):
        """DLTensor."""
        axes = ctypes.c_int64 * len(self.shape)
        self.axes = [axes(*self.shape), axes(*(self.strides or ()))]
        return struct.pack(
            "=Qiii4sQQQ",
            ctypes.addressof(self.data) if self.data is not None else 0,
            *self.device,
            len(self.shape),
            self.dtype,
            ctypes.addressof(self.axes[0]) if self.shape else 0,
            ctypes.addressof(self.axes[1]) if self.strides else 0,
            self.byte_offset,
        )

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.asked.append((max_version, copy))
        deleter = ctypes.cast(self.deleter, ctypes.c_void_p).value
        if self.versioned:
            head = struct.pack("=IIQQQ", *self.version, 0, deleter, 1)  # 1: read-only
            self.made.append(ctypes.create_string_buffer(head + self.tensor()))
        else:
            tail = struct.pack("=QQ", 0, deleter)
            self.made.append(ctypes.create_string_buffer(self.tensor() + tail))
        return api.PyCapsule_New(ctypes.addressof(self.made[-1]), self.name, self.destructor)


class OldProducer(Producer):
    """From before version 1: its __dlpack__ takes a stream only."""

    def __dlpack__(self, stream=None):
        return super().__dlpack__(stream=stream)


def produce(array, code, bits, kind=Producer, strides=None, front=0, **changes):
    """A producer of an array's elements, `front` bytes of other memory before them."""
    data = (ctypes.c_char * (front + max(array.nbytes, 1))).from_buffer(
        bytearray(b"\xff" * front + array.tobytes() + bytes(array.nbytes == 0))
    )
    return kind(data, array.shape, code, bits, strides, byte_offset=front, **changes)


def rng(*shape):
    return np.random.default_rng(len(shape)).random(shape, np.float32)


CALL = dict(q=rng(9, 2, 4), k=rng(9, 2, 4)[::-1].copy(), v=rng(9, 2, 3), g=-rng(9, 2))
CALL |= dict(beta=rng(9, 2), cu_seqlens=np.array([0, 4, 9], np.int32))
CODES = {"cu_seqlens": (INT, 32)}


def producers(**changes):
    return {name: produce(x, *CODES.get(name, (FLOAT, 32)), **changes) for name, x in CALL.items()}


@pytest.mark.parametrize("front", [0, 4, 12])
@pytest.mark.parametrize(
    "changes",
    [
        {"versioned": True},
        {"versioned": False},
        {"versioned": False, "kind": OldProducer},
        {"version": (1, 99)},
        {"device": (3, 0)},  # pinned memory
    ],
    ids=str,
)
def test_a_capsule_is_read_in_place_and_freed_once(changes, front, monkeypatch):
    """Strides are NULL, the elements `front` bytes past the data pointer."""
    tensors = producers(front=front, **changes)
    executions = []

    def execute(plan, pointers, workspace, run=_library.Plan.execute):
        run(plan, pointers, workspace)
        executions.append([len(x.freed) for x in tensors.values()])

    monkeypatch.setattr(_library.Plan, "execute", execute)
    o, final_state = gated_delta_net(**tensors, output_final_state=True)
    assert [len(x.freed) for x in tensors.values()] == [1] * 6
    gradients = gated_delta_net_backward(**tensors, dO=o)
    assert [len(x.freed) for x in tensors.values()] == [2] * 6
    assert executions == [[0] * 6, [1] * 6]  # alive while they are read

    expected = gated_delta_net(**CALL, output_final_state=True)
    assert (o == expected[0]).all() and (final_state == expected[1]).all()
    for got, other in zip(gradients, gated_delta_net_backward(**CALL, dO=o), strict=True):
        assert (got is None and other is None) or (got == other).all()


def test_producers_are_asked_for_the_newest_version_and_for_no_copy():
    tensors = producers()
    gated_delta_net(**tensors)
    assert all(x.asked == [((1, 0), False)] for x in tensors.values())


def test_strides_count_elements_and_may_be_negative_or_zero():
    q = CALL["q"]
    reverse = produce(q[::-1], FLOAT, 32, strides=(-8, 4, 1), front=0)
    reverse.byte_offset = 8 * 8 * 4  # the last row
    flat = produce(np.full((1, 1), -0.5, np.float32), FLOAT, 32)
    flat.shape, flat.strides = (9, 2), (0, 0)
    o, _ = gated_delta_net(**CALL | {"q": reverse, "g": flat})
    expected, _ = gated_delta_net(**CALL | {"g": np.full((9, 2), -0.5, np.float32)})
    assert (o == expected).all()


def test_a_view_of_another_base_is_found_by_its_address():
    """A data pointer into the middle of memory, as most libraries have it."""
    x = produce(CALL["v"], FLOAT, 32, front=20)
    x.data, x.byte_offset, x.whole = (ctypes.c_char * 1).from_buffer(x.data, 20), 0, x.data
    assert (gated_delta_net(**CALL | {"v": x})[0] == gated_delta_net(**CALL)[0]).all()


BAD = [
    ("odd_base", {"front": 3}, ValueError, "g must have a base that is a multiple .*4 bytes.* 3 "),
    ("vectors", {"lanes": 4}, TypeError, "g must be .*, got an unsupported dtype"),
    ("unknown_code", {"code": 99}, TypeError, "g must be .*, got an unsupported dtype"),
    ("half_byte", {"code": 17, "bits": 4}, TypeError, "g must be .*, got an unsupported dtype"),
    ("uint64", {"code": UINT, "bits": 64}, TypeError, "g must be .*, got an unsupported dtype"),
    ("uint8", {"code": UINT, "bits": 8}, TypeError, "g must be .*, got uint8"),
    ("int64", {"code": INT, "bits": 64}, TypeError, "g must be .*, got int64"),
    ("on_cuda", {"device": (2, 1)}, ValueError, r"g must be on q's device \(cpu\), got cuda:1"),
    ("on_metal", {"device": (8, 0)}, ValueError, r"g must be .*, got another device"),
    ("too_new", {"version": (2, 0)}, BufferError, "g: DLPack must be of version 1 .*, got 2.0"),
    ("used", {"name": b"used_dltensor_versioned"}, BufferError, "g: __dlpack__ must return a fr"),
    ("no_memory", {"data": None}, ValueError, "g has no memory"),
]


@pytest.mark.parametrize("changes,kind,pattern", [row[1:] for row in BAD], ids=[r[0] for r in BAD])
def test_a_bad_tensor_is_refused_and_freed(changes, kind, pattern):
    changes = dict(changes)
    fields = {"code": changes.pop("code", FLOAT), "bits": changes.pop("bits", 32)}
    memory = changes.pop("data", "there")
    tensors = producers() | {"g": produce(CALL["g"], **fields, **changes)}
    if memory is None:
        tensors["g"].data = None
    with pytest.raises(kind, match=rf"^gated_delta_net: {pattern}"):
        gated_delta_net(**tensors)
    gc.collect()
    for name, x in tensors.items():
        used = name == "g" and "name" in changes
        assert len(x.freed) == (0 if used else len(x.made)), name


def test_no_engine_takes_tensors_of_another_device():
    tensors = producers(device=(2, 0))
    with pytest.raises(
        NotSupportedError, match=r"(?s)gdn_cpu: .* got cuda.*gdn_reference: .* got cuda"
    ):
        gated_delta_net(**tensors)


def test_results_are_not_written_for_another_device(monkeypatch):
    """Whatever engine may take such tensors one day: its outputs would not be NumPy's."""

    class Plan:
        workspace_bytes = 0

        def __init__(self, problem):
            pass

    monkeypatch.setattr(_library, "Plan", Plan)
    with pytest.raises(NotSupportedError, match="^gated_delta_net: .* must be there"):
        gated_delta_net(**producers(device=(2, 0)))


@pytest.mark.parametrize("returned", [None, 5, b"dltensor"])
def test_something_else_than_a_capsule_is_refused(returned):
    class Odd:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **options):
            return returned

    kind, text = failure(lambda: gated_delta_net(**CALL | {"q": Odd()}))
    assert kind is BufferError
    assert (
        text
        == f"gated_delta_net: q: __dlpack__ must return a fresh DLPack capsule, got {returned!r}"
    )


def test_an_error_of_a_producer_passes_through():
    class Failing:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **options):
            raise RuntimeError("the tensor was donated")

    with pytest.raises(RuntimeError, match="^the tensor was donated$"):
        gated_delta_net(**CALL | {"q": Failing()})


def test_bfloat16_and_integers_are_told_apart():
    ones = np.full((9, 2, 4), 0x3F80, np.uint16)  # 1.0 in bfloat16
    rows = produce(ones, BFLOAT, 16)
    o, _ = gated_delta_net(**CALL | {"q": rows, "k": rows, "v": rows})
    assert o.dtype.name == "bfloat16" and o[0, 0, 0] != 0
    with pytest.raises(TypeError, match="q must be .*, got an unsupported dtype"):
        gated_delta_net(**CALL | {"q": produce(ones, UINT, 16)})

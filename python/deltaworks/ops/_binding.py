"""Loads the compiled PyTorch operators (bindings/torch) and reads what they say of themselves."""

import ctypes

import torch

from deltaworks import _library

# libdeltaworks first: the operators' library then finds it in the process, by its name.
_core = _library.library()
_path = str(_library.shared_object("libdeltaworks_torch.so"))
try:
    torch.ops.load_library(_path)
except OSError as error:
    raise ImportError(
        f"deltaworks: the PyTorch operators (torch 2.11 or newer) do not load in torch "
        f"{torch.__version__}: {error}"
    ) from error
_binding = ctypes.CDLL(_path)
_binding.dw_torch_workspace_bytes.restype = ctypes.c_size_t


def last_plan() -> str:
    """Name of the plan that executed last on this thread ("gdn_cpu"); "" before the first."""
    return _core.dw_last_plan().decode()


def workspace_bytes() -> int:
    """Bytes of workspace that the last operator call on this thread allocated."""
    return _binding.dw_torch_workspace_bytes()

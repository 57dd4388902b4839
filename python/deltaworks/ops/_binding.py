"""Loads the compiled PyTorch operators (bindings/torch)."""

import torch

from deltaworks import _library

# libdeltaworks first: the operators' library then finds it in the process, by its name.
_library.library()
_path = str(_library.shared_object("libdeltaworks_torch.so"))
try:
    torch.ops.load_library(_path)
except OSError as error:
    raise ImportError(
        f"deltaworks: the PyTorch operators (torch 2.11 or newer) do not load in torch "
        f"{torch.__version__}: {error}"
    ) from error

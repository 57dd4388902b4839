"""The trained model on disk: a safetensors file whose metadata holds the model's sizes."""

import json
from collections.abc import Callable
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from deltaworks.demo.model import ByteModel, ModelConfig


def save(model: ByteModel, path: Path) -> None:
    """Writes every parameter under its module name."""
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, path, metadata={"config": json.dumps(model.config.as_dict())})


def load(path: Path, operator: Callable | None = None) -> ByteModel:
    """A fresh model with the file's sizes and weights."""
    with safe_open(path, framework="pt") as file:
        model = ByteModel(ModelConfig(**json.loads(file.metadata()["config"])), operator)
        model.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    return model

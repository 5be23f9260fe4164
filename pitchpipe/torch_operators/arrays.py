"""torch's tensors as NumPy's arrays and back; NumPy has bfloat16 by ml_dtypes. Needs torch."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch


def to_array(tensor: Any) -> np.ndarray:
    """The tensor's values on the host, without a copy where it is contiguous there."""
    tensor = tensor.detach().resolve_neg().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        view: np.ndarray = tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
        return view
    array: np.ndarray = tensor.numpy()
    return array


def to_tensor(array: np.ndarray) -> Any:
    """A tensor with the array's values, in memory of its own."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array, order="C"))

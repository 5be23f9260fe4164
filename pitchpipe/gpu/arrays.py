"""What a model is given and gives back on a GPU: tensors of torch's, of any library that has DLPack, or of the host.

An array on the GPU is used where it lies, and must be in row-major order at a multiple of 16 bytes; one of torch's that is
not is copied by torch, in stream order. An array on the host is copied.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from pitchpipe.arrays import numpy_dtype
from pitchpipe.errors import InvalidInput
from pitchpipe.gpu import dlpack
from pitchpipe.gpu.dlpack import Borrowed, Described
from pitchpipe.gpu.driver import CudaError
from pitchpipe.gpu.program import CALLER_ALIGNMENT, Buffer

if TYPE_CHECKING:
    from pitchpipe.gpu.loaded import LoadedProgram


class Spec(Protocol):
    """What an array must be."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str:
        """NumPy's name of the element type."""

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(slots=True, kw_only=True)
class Given:
    """An array that fits its spec."""

    address: int
    ordinal: int | None
    """Of the GPU where it lies; None on the host."""
    owner: Any
    """Keeps the memory alive."""


def torch_here() -> Any:
    """PyTorch, where this program has imported it; None else."""
    return sys.modules.get("torch")


def ordinal_of(array: Any) -> int | None:
    """Of the GPU on which an array lies; None of one on the host."""
    torch = torch_here()
    if torch is not None and isinstance(array, torch.Tensor):
        return array.device.index or 0 if array.is_cuda else None
    if not hasattr(array, "__dlpack_device__"):
        return None
    kind, ordinal = array.__dlpack_device__()
    return int(ordinal) if int(kind) in dlpack.ON_GPU else None


def given(spec: Spec, array: Any, ordinal: int | None, stream: int) -> Given:
    """The array, which lies on the GPU `ordinal` (on the host where that is None), for work on the stream.

    Raises InvalidInput for one that is not what `spec` says, or that cannot be used.
    """
    torch = torch_here()
    if torch is not None and isinstance(array, torch.Tensor) and ordinal is not None:
        return _of_torch(spec, array, ordinal)
    try:
        described, owner = _on_gpu(array, stream) if ordinal is not None else _on_host(array)
    except Exception as error:  # whatever an array library raises for an array that it cannot hand over
        raise InvalidInput(f"{spec.name} is no array that can be used: {error}") from error
    _check(spec, described.dtype, described.shape)
    if ordinal is not None and not (described.contiguous and described.address % CALLER_ALIGNMENT == 0):
        raise InvalidInput(f"{spec.name} must lie in row-major order, at a multiple of {CALLER_ALIGNMENT} bytes")
    return Given(address=described.address, ordinal=ordinal, owner=owner)


def _of_torch(spec: Spec, tensor: Any, ordinal: int) -> Given:
    _check(spec, _name_of(tensor.dtype), tensor.shape)
    if not tensor.is_contiguous() or tensor.is_neg():
        tensor = tensor.detach().resolve_neg().contiguous()
    address = tensor.data_ptr()
    if address % CALLER_ALIGNMENT:
        tensor = tensor.detach().clone()
        address = tensor.data_ptr()
    return Given(address=address, ordinal=ordinal, owner=tensor)


@cache
def _name_of(dtype: Any) -> str:
    """NumPy's name of torch's element type."""
    return str(dtype).removeprefix("torch.")


def _check(spec: Spec, dtype: str, shape: tuple[int, ...]) -> None:
    if dtype != spec.dtype or shape != spec.shape:
        raise InvalidInput(f"{spec.name} must be {spec.dtype}{list(spec.shape)}, not {dtype}{list(shape)}")


def _on_gpu(array: Any, stream: int) -> tuple[Described, Any]:
    borrowed = Borrowed(array, stream)
    return borrowed.described, borrowed


def _on_host(array: Any) -> tuple[Described, Any]:
    """In row-major order."""
    import numpy as np

    if hasattr(array, "detach"):
        array = array.detach().contiguous()
    if hasattr(array, "__dlpack__") and not isinstance(array, (np.ndarray, np.generic)):
        borrowed = Borrowed(array)
        if borrowed.described.contiguous:
            return borrowed.described, borrowed
        array = np.from_dlpack(array)
    found = np.asarray(array)
    native = found.dtype if found.dtype.isnative else found.dtype.newbyteorder("=")
    found = found.astype(native, order="C", copy=False)
    return _described(found), found


def _described(array: Any) -> Described:
    return Described(
        address=array.ctypes.data,
        device_type=dlpack.CPU,
        ordinal=0,
        dtype=str(array.dtype),
        shape=array.shape,
        contiguous=True,
    )


def host_array(buffer: Buffer) -> Any:
    """A new array of NumPy's for what a buffer holds."""
    import numpy as np

    return np.empty(buffer.shape, numpy_dtype(buffer.dtype))


def torch_empty(torch: Any, buffer: Buffer, ordinal: int) -> Any:
    """A new tensor of torch's for what a buffer holds, of torch's allocator."""
    return torch.empty(buffer.shape, dtype=getattr(torch, buffer.dtype), device=torch.device("cuda", ordinal))


def on_stream(torch: Any, stream: int, ordinal: int) -> Any:
    """A context in which torch's allocator gives memory for work on a stream of somebody else's."""
    return torch.cuda.stream(torch.cuda.ExternalStream(stream, device=torch.device("cuda", ordinal)))


class DeviceArray:
    """A result on the GPU, for libraries that take arrays by DLPack (`cupy.from_dlpack(result)`).

    Its memory goes back to the model's pool once nobody holds it, after what is queued on the default stream and on
    streams that wait for it. Whoever reads it on another kind of stream waits before letting it go.
    """

    def __init__(self, loaded: LoadedProgram, buffer: Buffer, stream: int) -> None:
        """In the order of the stream, with the device's context current."""
        self._loaded, self._buffer = loaded, buffer
        self.address = loaded.driver.allocate_from(loaded.pool(), buffer.size_bytes, stream)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._buffer.shape

    @property
    def dtype(self) -> str:
        """NumPy's name of the element type."""
        return self._buffer.dtype

    def numpy(self) -> Any:
        """A copy on the host; waits for the run."""
        loaded, found = self._loaded, host_array(self._buffer)
        with loaded.lock, loaded.current():
            loaded.driver.wait_for(loaded.done, loaded.stream)
            loaded.driver.download(found.ctypes.data, self.address, found.nbytes, loaded.stream)
            loaded.driver.synchronize(loaded.stream)
        return found

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self._loaded.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The array protocol's: `stream` waits for the run. Raises BufferError for a copy or another device."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("a result is handed over where it lies")
        handle = dlpack.stream_handle(stream)
        if handle is not None:
            with self._loaded.current():
                self._loaded.driver.wait_for(self._loaded.done, handle)
        described = Described(
            address=self.address,
            device_type=dlpack.CUDA,
            ordinal=self._loaded.ordinal,
            dtype=self.dtype,
            shape=self.shape,
            contiguous=True,
        )
        return dlpack.lend(described, self)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            with suppress(CudaError), self._loaded.current():
                self._loaded.driver.wait_for(self._loaded.done, 0)
                self._loaded.driver.free_on(self.address, 0)


def one_ordinal(specs: Sequence[Spec], arrays: Sequence[Any]) -> tuple[list[int | None], int | None]:
    """Where each array lies, and the one GPU on which any of them does. Raises InvalidInput where there are two."""
    found = [ordinal_of(array) for array in arrays]
    gpu = None
    for one in found:
        if one is not None and one != gpu:
            if gpu is not None:
                named = ", ".join(
                    f"{spec.name} on {at}" for spec, at in zip(specs, found, strict=True) if at is not None
                )
                raise InvalidInput(f"the arrays lie on different GPUs: {named}")
            gpu = one
    return found, gpu

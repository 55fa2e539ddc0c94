"""Where the model computes: the one place that knows CPU from CUDA apart from the cache's copies.

On CUDA everything is launched on the current stream of the engine's thread, in order, and nothing
here waits for it except a fence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antiphon_engine.api.errors import StartupError
from antiphon_engine.memory_plan import AvailableMemory, available_memory_bytes

_Scalar = TypeVar("_Scalar", bound=np.generic)


class Fence(Protocol):
    """A point in what was launched."""

    def synchronize(self) -> None:
        """Waits until everything before it is done."""


class PassedFence:
    """The fence of work that was done when it was launched."""

    def synchronize(self) -> None:
        """Returns at once."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device by its name, `cpu` or `cuda`; `open` checks that it is there."""

    name: str

    @classmethod
    def open(cls, name: str, *, has_cuda: Callable[[], bool] = torch.cuda.is_available) -> "Device":
        """Returns the device. Raises StartupError where this machine or PyTorch has none."""
        if name not in ("cpu", "cuda"):
            raise StartupError(f"engine.device {name!r} is not supported: cpu or cuda")
        if name == "cuda" and not has_cuda():
            build = "finds no device" if torch.version.cuda else "is built without CUDA"
            raise StartupError(f"engine.device is cuda, but PyTorch {torch.__version__} {build}")
        return cls(name)

    @property
    def is_cuda(self) -> bool:
        """Whether work is launched rather than done."""
        return self.name == "cuda"

    @property
    def torch_device(self) -> torch.device:
        """PyTorch's word for it."""
        return torch.device(self.name)

    def upload(self, array: NDArray[np.generic]) -> Tensor:
        """Returns an array of the host as a tensor of the device, without waiting.

        On the CPU it shares memory. On CUDA the array is read at once where it lies in ordinary
        memory, and until the next fence where it lies in pinned memory.
        """
        tensor = torch.from_numpy(array)
        return tensor.to(self.torch_device, non_blocking=True) if self.is_cuda else tensor

    def download(self, tensor: Tensor, dtype: type[_Scalar]) -> NDArray[_Scalar]:
        """Returns a tensor, which is of this type, as an array of the host, without waiting.

        On the CPU it shares memory. On CUDA it is complete once a fence made later is passed.
        """
        host = tensor.to("cpu", non_blocking=True) if self.is_cuda else tensor
        array: NDArray[_Scalar] = host.numpy()
        assert array.dtype == dtype
        return array

    def fence(self) -> Fence:
        """Returns a fence behind all that was launched so far."""
        if not self.is_cuda:
            return PassedFence()
        event = torch.cuda.Event()
        event.record()
        return event

    def available_memory(self) -> AvailableMemory:
        """Returns what may still be allocated."""
        host_bytes = available_memory_bytes()
        if not self.is_cuda:
            return AvailableMemory(device_bytes=host_bytes, host_bytes=host_bytes, is_shared=True)
        free_bytes, _ = torch.cuda.mem_get_info()
        return AvailableMemory(device_bytes=free_bytes, host_bytes=host_bytes, is_shared=False)


CPU: Final = Device("cpu")

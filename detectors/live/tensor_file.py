"""Writes tensors as a file of safetensors: names, types, shapes and bytes, nothing that could be executed.

The library is not used, as the watch needs nothing but numpy and torch. The format: the length of a
header (8 bytes, little-endian), the header (JSON: of each tensor its type, its shape and the offsets of its bytes),
then the bytes of all tensors without a gap. Files are read with the library, here and by others.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

# Types that every release of safetensors can hold.
TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
RESERVED = "__metadata__"  # the one name that no tensor may have
_ALIGNED = 8  # bytes: the header is padded to this, so that each number lies at a multiple of its size


def write(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write ``tensors``: contiguous, in the host's memory, of :data:`TYPES`. The same tensors give the same bytes.

    Raises OSError.
    """
    # Large elements first: a byte of one tensor would misalign the numbers of the next.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header, end = {}, 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for _, tensor in ordered:
            if tensor.nbytes:  # an empty tensor has no address
                # Read from memory, without a torch operation that a mode or a hook would see.
                file.write((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr()))

"""Arrays as raw little-endian bytes in protobuf. Nothing is allocated for a shape before it agrees with the bytes."""

import math

import numpy as np
import numpy.typing as npt
from drumroll_proto.v1 import sample_pb2 as pb

from drumroll.errors import CorruptError

Array = npt.NDArray[np.generic]

_DTYPES: dict[int, np.dtype[np.generic]] = {
    pb.DTYPE_INT32: np.dtype("<i4"),
    pb.DTYPE_INT64: np.dtype("<i8"),
    pb.DTYPE_FLOAT32: np.dtype("<f4"),
    pb.DTYPE_UINT8: np.dtype("u1"),
}
_KINDS = {dtype: kind for kind, dtype in _DTYPES.items()}
_MAX_DIMS = 8


def to_proto(array: Array) -> pb.Tensor:
    """Encode an array of int32, int64, float32 or uint8, of any shape.

    Raises:
        ValueError: another dtype.
    """
    kind = _KINDS.get(array.dtype.newbyteorder("<"))
    if kind is None:
        raise ValueError(f"dtype {array.dtype} cannot be sent; int32, int64, float32 and uint8 can")
    data = np.ascontiguousarray(array, dtype=_DTYPES[kind]).tobytes()
    return pb.Tensor(dtype=pb.DType.ValueType(kind), shape=array.shape, data=data)


def from_proto(tensor: pb.Tensor, name: str) -> Array:
    """A read-only view of the tensor's bytes.

    Raises:
        CorruptError: an unknown dtype, or a shape that does not agree with the bytes.
    """
    dtype = _DTYPES.get(tensor.dtype)
    if dtype is None:
        raise CorruptError(f"{name}: unknown dtype {tensor.dtype}")
    shape = tuple(tensor.shape)
    if len(shape) > _MAX_DIMS:
        raise CorruptError(f"{name}: {len(shape)} dimensions, at most {_MAX_DIMS} are allowed")
    if math.prod(shape) * dtype.itemsize != len(tensor.data):
        raise CorruptError(f"{name}: shape {shape} of {dtype} does not hold {len(tensor.data)} bytes")
    try:
        return np.frombuffer(tensor.data, dtype=dtype).reshape(shape)
    except (ValueError, OverflowError) as error:
        raise CorruptError(f"{name}: {shape} is not a shape of an array") from error


def vector(tensor: pb.Tensor, name: str, dtype: npt.DTypeLike) -> Array:
    """A tensor that must be one-dimensional and of `dtype`.

    Raises:
        CorruptError: it is not.
    """
    array = from_proto(tensor, name)
    if array.ndim != 1 or array.dtype != np.dtype(dtype):
        raise CorruptError(f"{name}: a vector of {np.dtype(dtype)} is wanted, not {array.dtype} {array.shape}")
    return array

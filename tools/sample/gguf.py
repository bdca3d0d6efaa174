"""Writes and reads GGUF version 3: metadata and F32 or F16 tensors, little-endian."""
import struct

import numpy as np

MAGIC, VERSION = b"GGUF", 3
ALIGNMENT = 32  # of the tensor data, in bytes; the format's default

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9  # types of metadata
SCALARS = {UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}

TENSOR_TYPES = {0: np.dtype("<f4"), 1: np.dtype("<f2")}
TENSOR_TYPE_IDS = {dtype: number for number, dtype in TENSOR_TYPES.items()}


def padding(position):
    return -position % ALIGNMENT


def pack_string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def pack_value(kind, value):
    return pack_string(value) if kind == STRING else struct.pack(SCALARS[kind], value)


def pack_metadata(key, kind, value):
    packed = pack_string(key)
    if isinstance(value, list):  # kind is that of the elements
        packed += struct.pack("<IIQ", ARRAY, kind, len(value))
        return packed + b"".join(pack_value(kind, element) for element in value)
    return packed + struct.pack("<I", kind) + pack_value(kind, value)


def write(path, metadata, tensors):
    """metadata: list of (key, type, value); tensors: dict from name to array.

    A matrix array has shape [output, input]; GGUF lists the dimensions fastest first.
    """
    header = MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(metadata))
    header += b"".join(pack_metadata(*entry) for entry in metadata)
    offset = 0
    for name, array in tensors.items():
        header += pack_string(name) + struct.pack("<I", array.ndim)
        header += struct.pack(f"<{array.ndim}Q", *reversed(array.shape))
        header += struct.pack("<IQ", TENSOR_TYPE_IDS[array.dtype], offset)
        offset += array.nbytes + padding(array.nbytes)
    with open(path, "wb") as file:
        file.write(header + bytes(padding(len(header))))
        for array in tensors.values():
            file.write(array.tobytes() + bytes(padding(array.nbytes)))


class Cursor:
    def __init__(self, data):
        self.data, self.position = data, 0

    def unpack(self, layout):
        values = struct.unpack_from(layout, self.data, self.position)
        self.position += struct.calcsize(layout)
        return values

    def string(self):
        (size,) = self.unpack("<Q")
        self.position += size
        return self.data[self.position - size:self.position].decode()

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            element_kind, count = self.unpack("<IQ")
            return [self.value(element_kind) for _ in range(count)]
        return self.unpack(SCALARS[kind])[0]


def read(path):
    """The metadata and the tensors as two dicts."""
    with open(path, "rb") as file:
        cursor = Cursor(file.read())
    magic, version, tensor_count, metadata_count = cursor.unpack("<4sIQQ")
    if magic != MAGIC or version != VERSION:
        raise ValueError(f"{path}: not a GGUF file of version {VERSION}")
    metadata = {}
    for _ in range(metadata_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.unpack("<I")[0])
    infos = []
    for _ in range(tensor_count):
        name = cursor.string()
        (dimensions,) = cursor.unpack("<I")
        shape = cursor.unpack(f"<{dimensions}Q")[::-1]
        infos.append((name, shape, *cursor.unpack("<IQ")))
    start = cursor.position + padding(cursor.position)
    tensors = {}
    for name, shape, tensor_type, offset in infos:
        count = int(np.prod(shape))
        array = np.frombuffer(cursor.data, TENSOR_TYPES[tensor_type], count, start + offset)
        tensors[name] = array.reshape(shape)
    return metadata, tensors

"""A workload compiled for a CPU, as data: one process compiles it, and any number of others load and run it.

What `tuner/measure/build.py` makes is for the process that made it. Here the compiler's object code and what has to be done
with weights become bytes:

    8 bytes     size of the header
    header      JSON: for each parameter that is packed its index, its packed type, and its positions or its function's name
                (tuner/schedule/packing.py)
    the rest    object code

A process that loads them maps the code anew, at an address of its own, as a deployment does with its library.
"""

from __future__ import annotations

import json
import struct
from functools import partial
from typing import Any

import numpy as np

from tuner.measure.build import CpuProgram, generate, with_packings
from tuner.schedule.packing import pack
from tuner.schedule.tensor_type import TensorType
from tuner.tvm_compat import load_object_code, object_code

_HEADER_SIZE = struct.Struct("=Q")


def compile_program(mod: Any, target: Any) -> bytes:
    """Compiles a workload, scheduled or not, for this machine's CPU. Raises what TVM raises for what it cannot compile."""
    whole, packings = with_packings(mod)
    code = object_code(generate(whole, target)[1])
    header = json.dumps(
        [
            {
                "param": packing.param,
                "shape": packing.packed.shape,
                "dtype": packing.packed.dtype,
                "symbol": packing.symbol,
                "positions": None if packing.positions is None else [each.tolist() for each in packing.positions],
            }
            for packing in packings
        ]
    ).encode()
    return _HEADER_SIZE.pack(len(header)) + header + code


def load_program(data: bytes) -> CpuProgram:
    """Loads what `compile_program` returned into this process. Opening it runs none of its code; calling it does."""
    (size,) = _HEADER_SIZE.unpack_from(data)
    start = _HEADER_SIZE.size + size
    packings = json.loads(data[_HEADER_SIZE.size : start])
    module = load_object_code(data[start:])
    copies, packed = {}, {}
    for packing in packings:
        packed[packing["param"]] = TensorType(shape=tuple(packing["shape"]), dtype=packing["dtype"])
        if packing["positions"] is None:
            copies[packing["param"]] = module.get_function(packing["symbol"], query_imports=True)
        else:
            positions = [np.array(each, dtype=np.int64) for each in packing["positions"]]
            copies[packing["param"]] = partial(pack, positions)
    main = module.get_function("main", query_imports=True)
    return CpuProgram(main=main, packings=copies, packed=packed, module=module)

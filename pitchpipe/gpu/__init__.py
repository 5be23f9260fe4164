"""GPU programs as data, and running them: needs NVIDIA's driver, and neither a compiler nor a toolkit nor TVM.

`program.py` has the types, `encoding.py` their bytes, `driver.py` the part of the driver's API that is called,
`dlpack.py` tensors that others own, `executable.py` a program on a device, `testing.py` a driver without a GPU.
"""

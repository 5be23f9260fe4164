"""Templates: kernels that are written down as Triton programs with bounded arguments, beside schedules as TIR traces.

text.py           what a candidate says: the name of a template and its arguments; no compiler
contraction.py    a workload read as a contraction with what comes before and after it
printer.py        TIR expressions as Triton's
source.py         the Triton program of a contraction for given arguments
compiler.py       from a program to PTX; assembler.py from PTX to machine code
kernels.py        both of them for a workload: launches and machine code
space.py          the arguments worth trying, ranked by an analytic estimate
"""

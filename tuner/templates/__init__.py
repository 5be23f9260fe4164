"""Templates: kernels that are written down as Triton programs with bounded arguments, beside schedules as TIR traces.

text.py            what a candidate says: the name of a template and its arguments; no compiler
contraction.py     a workload read as a contraction with what comes before and after it
rows.py            a workload read as a chain of stages that share rows; attention.py: such a chain as an attention
printer.py         TIR expressions as Triton's
kernel_source.py   a kernel's text and launch; source.py, row_source.py: those of the two templates; attention_source.py
compiler.py        from a kernel's text to PTX; assembler.py from PTX to machine code
kernels.py         all of it for a workload: launches and machine code
space.py           the arguments worth trying, ranked by an analytic estimate; row_space.py
"""

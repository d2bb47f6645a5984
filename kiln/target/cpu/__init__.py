"""The CPU target: LLVM IR text from kernels, compiled by LLVM and linked into this process."""

"""The GPU target: PTX from kernels, through LLVM, launched with the CUDA driver."""

"""The CPU: LLVM code with explicit vectors, compiled in this process through llvmlite."""

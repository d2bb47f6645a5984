"""What the targets share: expressions, types, loops and mathematical functions as LLVM IR text."""

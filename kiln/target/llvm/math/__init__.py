"""Mathematical functions of vectors as LLVM IR text."""

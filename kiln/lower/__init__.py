"""Lowering: functional graphs of ATen operators become loop IR (ops/), and loop IR becomes a schedule (schedule/)."""

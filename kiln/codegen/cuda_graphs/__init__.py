"""Programs recorded into CUDA graphs."""

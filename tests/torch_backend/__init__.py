"""The backend ``kiln`` of ``torch.compile``. Everything that loads torch's compiler runs in processes of its own."""

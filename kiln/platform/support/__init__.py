"""What Kiln needs of the installation it runs in: Python, torch, the native module; and what is switched off."""

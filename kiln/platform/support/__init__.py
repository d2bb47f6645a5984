"""What Kiln needs of the installation it runs in: which Pythons and torches, the native module, what is switched off."""

"""What capture assumes: sources, guards, the native guard program, and words for the program's values."""

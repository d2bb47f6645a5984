"""Guard mutation: change one thing that a compiled program can reach, call it again, and expect eager's answer."""

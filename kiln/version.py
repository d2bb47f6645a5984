"""Kiln's version, for the package itself and for the keys of the disk cache."""

VERSION = "0.1.0"

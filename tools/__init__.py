"""Tools around the package: the matrix of platforms (docs/platforms.md) and wheels (docs/packaging.md)."""

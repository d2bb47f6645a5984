"""The folder that is put on ``PYTHONPATH`` for the processes that a program on Kiln starts."""

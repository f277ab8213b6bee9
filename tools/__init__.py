"""What the Makefile asks for that is better said in Python. It runs before anything is installed, on any Python 3."""

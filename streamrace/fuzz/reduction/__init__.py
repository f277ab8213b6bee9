"""Makes a program as small as it can be while it still shows what it shows: nothing in it can be left out."""

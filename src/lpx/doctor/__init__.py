"""What the machine and its software are, and what is wrong with them. Prints nothing."""

"""What the machine is and what is wrong with it; one file a subject."""

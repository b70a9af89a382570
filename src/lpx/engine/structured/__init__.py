"""Output that keeps to a form: what is asked for, its grammar, and where each sequence stands in it."""

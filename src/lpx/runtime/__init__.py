"""One step on one device: the step contract, its options, the memory plan, and the executors."""

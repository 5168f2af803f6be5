"""What the instances of a configuration need of their GPUs, before anything starts."""

"""Experiments on the simulator: a cluster, a workload and an approach in a strict YAML file, cells
that run in processes and are kept on disk, measures, tables and pictures."""

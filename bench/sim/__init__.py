"""The discrete-event simulator: one more host of `policy/`. Nothing here imports vllm, torch or
nixl, and everything works without numba, only slower."""

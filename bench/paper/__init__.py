"""The paper's experiments on our simulator, beside the paper's own numbers."""

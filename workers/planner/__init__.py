"""What a job will need, before it runs: bytes of each rank by category, what is sent, and what fits.

`shape` reads a model without memory for it, `partition` and `traffic` are arithmetic over it, `activations` runs forward
and backward with tensors that have no storage, `matrix` puts rows side by side and says which one to take. Runs without a
GPU, a cluster or weights.
"""

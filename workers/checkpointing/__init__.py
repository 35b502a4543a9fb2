"""Engine-neutral checkpoints: named tensors as verified raw chunks, published by a manifest that is written last.

`catalog`, `fence`, `manifest_file`, `chunks` and `storage` know no torch, so that driver and agent may use them;
`save`, `load`, `shards` and `staging` stand on torch.distributed.checkpoint.
"""

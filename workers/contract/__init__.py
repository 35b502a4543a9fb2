"""Pure types and decisions that the control plane and the workers share: no torch, no Ray, no clock.

Every value here crosses a process boundary as JSON, so both sides parse it with the same model.
"""

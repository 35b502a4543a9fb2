"""In which order a run sees its samples: a pure function of the global index, so a position is one integer."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def sample_ids(
    indices: range | Sequence[int] | npt.NDArray[np.integer], *, num_samples: int, seed: int
) -> npt.NDArray[np.int64]:
    """Return the sample id of each global index. Index i lies in epoch i // num_samples; each epoch has each id once."""
    raise NotImplementedError

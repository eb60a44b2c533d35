"""For all tests: one OpenMP thread, set before anything loads torch.

The tests share a machine with each other; and the vLLM engine is forked from the test's process, which a second OpenMP
thread of the parent would not survive.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

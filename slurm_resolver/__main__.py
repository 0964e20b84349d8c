"""`python -m slurm_resolver` is the command `slurm-resolver`."""

import sys

from slurm_resolver.cli import main

sys.exit(main())

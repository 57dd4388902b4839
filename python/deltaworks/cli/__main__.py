"""python -m deltaworks.cli"""

import sys

from deltaworks.cli import main

sys.exit(main())

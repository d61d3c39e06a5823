import sys

from dapl.cli import main

sys.exit(main())

"""Entry point; kept free of new syntax so that any Python 3 can say which version is needed."""
import sys

if sys.version_info[:2] != (3, 11):
    sys.exit('Set-up needs Python 3.11, but this is Python {}.{}: install Python 3.11 and run '
             '`make setup PYTHON=/path/to/python3.11`.'.format(*sys.version_info))

from tools.setup.main import main  # noqa: E402

sys.exit(main())

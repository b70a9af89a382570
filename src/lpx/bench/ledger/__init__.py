"""The performance archive: every measurement, in one SQLite file that several processes may write at once.

`ledger` stores and finds runs, `schema` says what the file holds, `model_hashes` remembers what model files hash to,
`location` knows where the file lies.
"""

from lpx.bench.ledger.errors import LedgerError, UnknownRunError
from lpx.bench.ledger.ledger import Ledger
from lpx.bench.ledger.location import default_ledger_path
from lpx.bench.ledger.run import Run, RunFilter

__all__ = ["Ledger", "LedgerError", "Run", "RunFilter", "UnknownRunError", "default_ledger_path"]

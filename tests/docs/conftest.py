"""What the tests of pages have of those of commands: Prefect's database as a first start leaves it.

That a home without one gets there is what test_newcomer runs.
"""

from tests.flows.conftest import migrated_database

__all__ = ["migrated_database"]

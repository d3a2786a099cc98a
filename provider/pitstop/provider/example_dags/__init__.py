"""Example DAGs, imported and run by the tests."""

"""Alembic migrations: env.py runs them, schema.py calls them from the code, versions/ holds them."""
